"""What an actor is doing, and what it has spent."""

import threading

import pytest

from proa.actors.activity import Activity


class Clock:
    """Time that passes when told to; it stands in for the module `time`."""

    def __init__(self):
        self.now = 100.0

    def time(self):
        return self.now

    perf_counter = time


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("proa.actors.activity.time", made)
    return made


def test_seconds_add_up_by_kind_once_they_are_over(clock):
    activity = Activity()
    for seconds in (1.0, 2.0):
        with activity.doing("generate", "generating lease 3"):
            clock.now += seconds
    with activity.doing("score", "scoring lease 3"):
        clock.now += 4.0
        assert activity.look().spent == {"generate": 3.0}
    assert activity.look().spent == {"generate": 3.0, "score": 4.0}


def test_what_it_does_is_known_with_when_it_began_and_afterwards_it_is_what_it_was(clock):
    activity = Activity()
    with activity.doing("load", "loading"):
        clock.now = 105.0
        with activity.doing("fetch", "fetching"):
            assert (activity.look().what, activity.look().since) == ("fetching", 105.0)
        assert activity.look().what == "loading"
    assert activity.look().what == "starting"


def test_what_ends_in_an_error_is_counted_and_over(clock):
    activity = Activity()
    with pytest.raises(RuntimeError):
        with activity.doing("generate", "generating"):
            clock.now += 1.5
            raise RuntimeError("no")
    assert (activity.look().what, activity.look().spent) == ("starting", {"generate": 1.5})


def test_between_two_looks_only_what_ended_there_counts(clock):
    activity = Activity()
    for kind in ("wait", "generate"):
        with activity.doing(kind, kind):
            clock.now += 1.0
    earlier = activity.look()
    for kind in ("generate", "score"):
        with activity.doing(kind, kind):
            clock.now += 2.0
    assert activity.look().spent_since(earlier) == {"generate": 2.0, "score": 2.0}
    assert earlier.spent_since(earlier) == {}


def test_resting_has_words_and_costs_nothing(clock):
    activity = Activity()
    activity.rest("between leases")
    clock.now += 3.0
    with activity.doing("wait", "waiting"):
        clock.now += 1.0
    assert (activity.look().what, activity.look().spent) == ("between leases", {"wait": 1.0})


def test_anyone_may_look_while_it_works():
    activity = Activity()
    seen = []
    with activity.doing("generate", "generating lease 1"):
        thread = threading.Thread(target=lambda: seen.append(activity.look().what))
        thread.start()
        thread.join(120)
    assert seen == ["generating lease 1"]
