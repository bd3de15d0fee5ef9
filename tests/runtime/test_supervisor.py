"""The supervisor, with makers that are neither threads nor actors, and a clock that is turned by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proa import CallbackManager
from proa.record.live import ActorView
from proa.runtime.supervisor import QUIET_SECONDS, START_SECONDS, Limits, MakerEnd, Supervisor

LEASES = 5


class Maker:
    """A maker that does what the test says."""

    def __init__(self, name):
        self.name = name
        self.view = ActorView(name, "maker", doing="starting")
        self.log = f"{name}.log"
        self.has_weights = False
        self.may_have_begun = False
        self.is_up = self.replies = self.hears = False
        self.end = None
        self.calls = []

    def has_started(self):
        return self.is_up

    def look(self):
        return self.is_up and self.replies

    def ended(self):
        return self.end

    def distrust_weights(self):
        self.calls.append("distrust weights")
        self.has_weights = self.has_weights and not self.hears
        return self.hears

    def stop(self):
        self.calls.append("stop")

    def wait(self, seconds):
        self.calls.append(f"wait {seconds:g}")
        return self.end is not None

    def kill(self):
        self.calls.append("kill")
        return self.name.startswith("maker_0")

    def describe_log(self):
        return f" (see {self.log})"

    def works(self, leases=0):
        """It is up, replies, and has weights; it may have made leases."""
        self.is_up = self.replies = self.hears = self.has_weights = self.may_have_begun = True
        self.view = replace(self.view, doing="working", since=1.0, version=0, leases=leases)


class Fleet:
    """A supervisor with everything around it: makers, a lease book of sorts, a clock, and what callbacks heard."""

    def __init__(self, makers=2, *, slots_differ=True, **limits):
        self.slots_differ = slots_differ
        self.started = []
        self.late = {}
        self.held = {}
        self.dismissed = []
        self.time = 0.0
        self.events = []
        manager = CallbackManager()
        manager.on("maker.lost")(lambda maker, reason: self.events.append(("lost", maker, reason)))
        manager.on("maker.recreated")(lambda maker, reason: self.events.append(("recreated", maker, reason)))
        limits = Limits(**{"lease_timeout": 60.0, "max_restarts": 4, **limits})
        self.supervisor = Supervisor(makers, self, manager=manager, limits=limits, clock=lambda: self.time)
        self.supervisor.start()

    def start(self, name, slot):
        assert name.split("+")[0] == f"maker_{slot}"  # a replacement is where the one before it was
        self.started.append(Maker(name))
        return self.started[-1]

    def overdue(self, seconds):
        return self.late

    def dismiss(self, name):
        self.dismissed.append(name)
        self.late = {lease: maker for lease, maker in self.late.items() if maker != name}
        return [lease for lease in list(self.held) if self.held[lease] == name and self.held.pop(lease)]

    @property
    def makers(self):
        """Who is in the slots."""
        by_name = {maker.name: maker for maker in self.started}
        return [by_name[view.name] for view in self.supervisor.views()]

    def turn(self, seconds=0.5):
        """What a runtime does again and again."""
        self.time += seconds
        self.supervisor.check()
        self.supervisor.start_due()

    def fail(self, slot, lease=None, reason="out of luck"):
        """The maker in that slot does, and is replaced, if it is, before this returns."""
        self.makers[slot].end = MakerEnd(reason, lease)
        self.turn()
        self.turn(5.0)

    @property
    def reason(self):
        return self.supervisor.failure.reason if self.supervisor.failure is not None else None

    def views(self):
        return [(view.name, view.health, view.restarts) for view in self.supervisor.views()]


def test_a_lost_maker_is_announced_dismissed_ended_and_replaced_under_a_new_name():
    fleet = Fleet()
    fleet.held = {3: "maker_1"}
    fleet.makers[1].end = MakerEnd("it died")
    fleet.turn()
    assert fleet.views() == [("maker_0", "restarting", 0), ("maker_1", "dead", 0)]
    assert fleet.dismissed == ["maker_1"]
    assert fleet.started[1].calls == ["stop"]
    fleet.turn()
    assert fleet.views() == [("maker_0", "restarting", 0), ("maker_1+1", "restarting", 1)]
    assert fleet.events == [("lost", "maker_1", "it died"), ("recreated", "maker_1+1", "it died")]


@pytest.mark.parametrize(("slots_differ", "waits"), [(True, [0.5, 1.0, 2.0]), (False, [0.0, 0.0])])
def test_replacements_wait_longer_each_time_where_slots_differ_and_not_at_all_where_they_do_not(slots_differ, waits):
    fleet = Fleet(1, slots_differ=slots_differ)
    for wait in waits:
        fleet.makers[0].end = MakerEnd("it died")
        before = len(fleet.started)
        if wait:
            fleet.turn()
            fleet.turn(wait - 0.01)
            assert len(fleet.started) == before
        fleet.turn(0.01)
        assert len(fleet.started) == before + 1


def test_a_maker_that_has_made_a_lease_clears_what_counts_against_its_slot():
    fleet = Fleet(1, max_restarts=2)
    for _ in range(6):
        fleet.makers[0].works(leases=1)
        fleet.turn()
        fleet.fail(0)
    assert fleet.reason is None
    fleet.fail(0)
    assert fleet.reason == "out of luck (see maker_0+6.log)"


def test_a_maker_with_an_overdue_lease_hangs_and_is_killed():
    fleet = Fleet()
    fleet.late = {7: "maker_0", 8: "nobody that is known"}
    fleet.turn()
    assert fleet.events == [("lost", "maker_0", "maker_0 has had lease 7 for more than 60 s")]
    assert fleet.started[0].calls == ["stop", "kill"]


def test_a_maker_that_does_not_start_is_lost():
    fleet = Fleet(1)
    fleet.turn(START_SECONDS)
    assert not fleet.events
    fleet.turn(1.0)
    assert fleet.events[0][2] == "maker_0 did not start within 120 s: are there resources for it?"


def test_a_silent_maker_is_suspect_and_must_load_weights_again_before_it_is_healthy():
    fleet = Fleet(1)
    maker = fleet.makers[0]
    maker.works()
    fleet.turn()
    assert fleet.views() == [("maker_0", "healthy", 0)]
    maker.replies = maker.hears = False
    fleet.turn(QUIET_SECONDS + 1)
    assert fleet.views() == [("maker_0", "suspect", 0)]
    maker.replies = True
    fleet.turn()
    assert fleet.views() == [("maker_0", "suspect", 0)], "it was heard, but has not heard that it must load again"
    maker.hears = True
    fleet.turn()
    fleet.turn()
    assert fleet.views() == [("maker_0", "stale", 0)]
    assert maker.calls == ["distrust weights"] * 2
    maker.has_weights = True
    fleet.turn()
    assert fleet.views() == [("maker_0", "healthy", 0)]


def test_a_maker_that_stays_silent_is_lost_and_killed():
    fleet = Fleet(1)
    fleet.makers[0].works()
    fleet.turn()
    fleet.makers[0].replies = False
    fleet.turn(QUIET_SECONDS + 60.0)
    fleet.turn(1.0)
    assert fleet.events == [("lost", "maker_0", "maker_0 has not replied for 71 s")]
    assert fleet.started[0].calls == ["stop", "kill"]


@pytest.mark.parametrize("slots_differ", [True, False])
def test_a_lease_that_three_makers_fail_on_ends_the_run(slots_differ):
    fleet = Fleet(3, slots_differ=slots_differ)
    for slot in range(3):
        assert fleet.reason is None
        fleet.fail(slot, lease=4, reason=f"maker {slot} failed on lease 4")
    assert fleet.reason == "maker 2 failed on lease 4 (see maker_2.log)"


def test_a_lease_that_was_with_makers_that_just_died_may_be_given_to_twice_as_many():
    fleet = Fleet(6, max_restarts=10)
    for slot in range(6):
        assert fleet.reason is None
        fleet.held = {4: f"maker_{slot}"}
        fleet.fail(slot, reason="it died")
    assert fleet.reason == "it died; lease 4 was given to 6 makers (see maker_5.log)"


def test_a_slot_that_is_given_up_stays_empty_and_too_few_slots_end_the_run():
    fleet = Fleet(3, max_restarts=2, min_makers=2)
    fleet.fail(1)
    fleet.fail(1)
    fleet.turn(1000.0)
    assert fleet.views()[1] == ("maker_1+1", "dead", 1)
    assert fleet.reason is None
    fleet.fail(0)
    fleet.fail(0)
    assert fleet.reason == "out of luck (see maker_0+1.log)"


def test_where_slots_do_not_differ_a_slot_that_three_makers_cannot_work_in_ends_the_run():
    fleet = Fleet(2, slots_differ=False)
    for count in range(3):
        assert fleet.reason is None, count
        fleet.fail(0)
    assert fleet.reason == "out of luck (see maker_0+2.log)"


def test_where_slots_do_not_differ_a_failure_on_a_lease_is_not_held_against_the_slot():
    fleet = Fleet(1, slots_differ=False)
    for lease in range(10):
        fleet.fail(0, lease=lease)
    assert fleet.reason is None
    assert fleet.views() == [("maker_0+10", "restarting", 10)]


def test_what_a_maker_raised_is_the_cause_of_the_failure():
    error = ValueError("failed on lease 0")
    error.__cause__ = ZeroDivisionError("division by zero")
    fleet = Fleet(1, lease_attempts=1)
    fleet.makers[0].end = MakerEnd("failed on lease 0", 0, error=error)
    fleet.turn()
    assert fleet.supervisor.failure.cause is error.__cause__


def test_when_the_run_must_end_nobody_else_is_announced_or_replaced():
    fleet = Fleet(2, lease_attempts=1)
    for maker in fleet.makers:
        maker.end = MakerEnd("failed", 0)
    fleet.turn()
    fleet.turn(100.0)
    assert [event[:2] for event in fleet.events] == [("lost", "maker_0")]
    assert fleet.views() == [("maker_0", "dead", 0), ("maker_1", "dead", 0)]


def test_after_the_run_ends_are_noted_and_nobody_is_announced_or_replaced():
    fleet = Fleet(3)
    ended, failed, idle = fleet.makers
    ended.works()
    failed.works()
    assert fleet.supervisor.is_unfinished is True
    ended.end, failed.end = MakerEnd(callback_errors={"Printer": 1}), MakerEnd("too late")
    fleet.supervisor.collect_ends()
    assert not fleet.supervisor.is_unfinished, "one that was getting ready has nothing to report"
    fleet.turn(100.0)
    assert fleet.views() == [("maker_0", "healthy", 0), ("maker_1", "dead", 0), ("maker_2", "restarting", 0)]
    assert fleet.events == []
    assert idle.calls == []


def test_callback_errors_of_lost_makers_and_of_those_at_work_are_added_up():
    fleet = Fleet(2)
    first, second = fleet.makers
    first.end = MakerEnd("it died", callback_errors={"Printer": 2})
    second.view = replace(second.view, callback_errors={"Printer": 1, "Plotter": 4})
    fleet.turn()
    assert fleet.supervisor.callback_errors == {"Printer": 3, "Plotter": 4}
    fleet.turn()
    assert len(fleet.started) == 3
    assert fleet.supervisor.callback_errors == {"Printer": 3, "Plotter": 4}


def test_who_does_not_end_in_time_is_killed_and_who_cannot_be_is_named(caplog):
    fleet = Fleet(3)
    fleet.makers[2].end = MakerEnd()
    fleet.supervisor.end(5.0)
    assert [maker.calls for maker in fleet.makers] == [
        ["stop", "wait 5", "kill"], ["stop", "wait 5", "kill"], ["stop", "wait 5"],
    ]  # fmt: skip
    assert caplog.messages == ["maker_1 did not end with the run and is left behind"]


def test_activities_have_a_duration_where_it_is_known(monkeypatch):
    monkeypatch.setattr("proa.runtime.supervisor.time.time", lambda: 31.0)
    fleet = Fleet(2)
    fleet.makers[1].works()
    assert fleet.supervisor.activities() == ["maker_0: starting", "maker_1: working, for 30 s"]


# -- whatever happens --------------------------------------------------------------------------------

SOMETHING = st.one_of(
    st.tuples(st.just("time passes"), st.sampled_from([0.1, 1.0, 11.0, 80.0, 130.0])),
    st.tuples(st.just("works"), st.integers(0, 2)),
    st.tuples(st.just("falls silent"), st.none()),
    st.tuples(st.just("takes a lease"), st.integers(0, LEASES - 1)),
    st.tuples(st.just("has a lease for too long"), st.integers(0, LEASES - 1)),
    st.tuples(st.just("fails on a lease"), st.integers(0, LEASES - 1)),
    st.tuples(st.just("dies"), st.none()),
    st.tuples(st.just("ends with the run"), st.none()),
)


def happen(fleet, what, maker, value):
    match what:
        case "time passes":
            fleet.time += value
        case "works":
            maker.works(leases=value)
        case "falls silent":
            maker.replies = False
        case "takes a lease" if maker.name not in fleet.dismissed:
            fleet.held[value] = maker.name
        case "has a lease for too long" if maker.name not in fleet.dismissed:
            fleet.held[value] = fleet.late[value] = maker.name
        case "fails on a lease":
            fleet.held.pop(value, None)
            maker.end = MakerEnd(f"failed on lease {value}", value)
        case "dies":
            maker.end = MakerEnd("it died")
        case "ends with the run":
            maker.end = MakerEnd()


FLEETS = st.builds(
    Fleet,
    st.integers(1, 4),
    slots_differ=st.booleans(),
    lease_attempts=st.integers(1, 3),
    min_makers=st.integers(1, 2),
    max_restarts=st.integers(1, 4),
)


@given(fleet=FLEETS, happenings=st.lists(st.tuples(st.integers(0, 3), SOMETHING, st.booleans()), max_size=40))
def test_whatever_happens_every_loss_is_followed_up(fleet, happenings):
    slots = len(fleet.makers)
    for slot, (what, value), look_twice in happenings:
        maker = fleet.makers[slot % slots]
        if maker.end is None:
            happen(fleet, what, maker, value)
        fleet.turn(0.0)
        if look_twice:
            fleet.turn(30.0)
        assert len(fleet.makers) == slots, "a slot has no owner"
        if fleet.supervisor.failure is not None:
            break
        assert not any(fleet.held.get(lease) in fleet.dismissed for lease in fleet.held), "a lease is with nobody"
    lost = [name for event, name, _ in fleet.events if event == "lost"]
    recreated = [name for event, name, _ in fleet.events if event == "recreated"]
    names = [maker.name for maker in fleet.started]
    assert len(set(names)) == len(names), "a name was used twice"
    assert names[slots:] == recreated
    assert lost == fleet.dismissed
    assert len(set(lost)) == len(lost), "somebody was lost twice"
    assert all(reason for _, _, reason in fleet.events)
    if fleet.reason is not None:
        assert fleet.events[-1][0] == "lost", "after the loss that ends the run comes nothing"
        assert fleet.reason.startswith(fleet.events[-1][2])
        return
    fleet.time += 1000.0
    fleet.supervisor.start_due()
    dead = [view for view in fleet.supervisor.views() if view.health == "dead"]
    assert all(view.name in lost and view.reason for view in dead)
    replaced = len(fleet.started) - slots
    assert replaced + len(dead) == len(lost), "a lost maker is replaced, or its slot is given up"
    assert not dead or fleet.slots_differ


@given(
    fleet=FLEETS,
    failures=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, LEASES - 1)), min_size=LEASES * 3, max_size=LEASES * 3
    ),
)
def test_a_lease_that_fails_often_enough_ends_the_run_at_that_failure_or_before(fleet, failures):
    attempts, counts, slots = (
        fleet.supervisor._limits.lease_attempts,
        dict.fromkeys(range(LEASES), 0),
        len(fleet.makers),
    )
    for slot, lease in failures:
        maker = fleet.makers[slot % slots]
        if maker.end is not None:
            continue
        counts[lease] += 1
        fleet.fail(slot % slots, lease, f"failed on lease {lease}")
        if counts[lease] >= attempts:
            assert fleet.reason == f"failed on lease {lease} (see {maker.log})"
        if fleet.reason is not None:
            return
    assert max(counts.values()) < attempts
