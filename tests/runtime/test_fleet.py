"""The health of makers: one way to healthy, and it goes through fresh weights."""

import itertools

import pytest

from proa.runtime.fleet import Health, Member, Sign, back_off, next_health


def test_there_is_no_way_back_to_healthy_without_fresh_weights():
    for length in range(1, 5):
        for signs in itertools.product([sign for sign in Sign if sign is not Sign.LOADED], repeat=length):
            for start in (Health.RESTARTING, Health.STALE, Health.SUSPECT, Health.DEAD):
                health = start
                for sign in signs:
                    health = next_health(health, sign)
                    assert health is not Health.HEALTHY, (start, signs)


def test_the_dead_stay_dead_until_they_are_replaced():
    for sign in Sign:
        expected = Health.RESTARTING if sign is Sign.REPLACED else Health.DEAD
        assert next_health(Health.DEAD, sign) is expected


@pytest.mark.parametrize("sign", [Sign.LOST, Sign.FAILED])
@pytest.mark.parametrize("health", list(Health))
def test_anyone_can_be_lost(health, sign):
    assert next_health(health, sign) is Health.DEAD


def test_a_silent_maker_is_suspected_and_heard_again_has_stale_weights():
    member = Member("maker_0").after(Sign.STARTED).after(Sign.LOADED).after(Sign.QUIET)
    assert member.health is Health.SUSPECT
    assert member.after(Sign.HEARD).health is Health.STALE
    assert member.after(Sign.HEARD).after(Sign.LOADED).health is Health.HEALTHY


def test_replacements_are_counted_and_come_later_each_time():
    member = Member("maker_0")
    for count in range(1, 4):
        member = member.after(Sign.LOST, "gone").after(Sign.REPLACED)
        assert (member.name, member.restarts, member.reason) == (f"maker_0+{count}", count, "gone")
    waits = [back_off(restarts) for restarts in range(12)]
    assert waits == sorted(waits)
    assert waits[-1] == 30.0


def test_only_those_lost_before_they_made_anything_count_idle_losses():
    member = Member("maker_0")
    for _ in range(3):
        member = member.after(Sign.LOST).after(Sign.LOST).after(Sign.REPLACED)  # that it is lost is said twice
    assert member.idle_losses == 3
    member = member.after(Sign.STARTED).after(Sign.LOADED).after(Sign.MADE).after(Sign.LOST).after(Sign.REPLACED)
    assert (member.idle_losses, member.restarts) == (1, 4)


def test_failing_on_a_lease_is_not_counted_against_the_slot():
    member = Member("maker_0").after(Sign.LOST).after(Sign.REPLACED).after(Sign.FAILED, "bad lease")
    assert (member.health, member.idle_losses, member.reason) == (Health.DEAD, 1, "bad lease")
