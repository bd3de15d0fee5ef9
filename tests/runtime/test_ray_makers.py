"""The driver's view of makers that are actors: when one is waited for, what it reported, and how it ended."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

from proa import CallbackManager, LoopState, MakerCallback
from proa.lifecycle.copies import PackedState, return_states
from proa.record.live import ActorView
from proa.runtime.ray import maker_host, makers
from proa.runtime.ray.maker_host import MakerHost
from proa.runtime.ray.replies import Location
from proa.runtime.supervisor import Limits, MakerEnd, Supervisor


class Call:
    """A call to an actor that ends, or fails, when the test has it do so."""

    def __init__(self, name, patience, method):
        self.value, self.has_ended, self.error = None, False, None
        method(self)

    def ended(self):
        if self.error is not None:
            raise self.error
        return self.has_ended

    def end(self, value):
        self.value, self.has_ended = value, True


class Watched:
    """An actor that replies to every look with the view that the test gives it."""

    def __init__(self, name, patience, method):
        self.latest = self.view = None
        method(self)

    def look(self):
        self.latest = self.view
        return self.latest is not None


class Actor:
    """Keeps the calls that are made to it."""

    def ready(self, call):
        self.starting = call

    def work(self, call):
        self.working = call

    def look(self, watched):
        self.watched = watched

    def copies(self, watched):
        self.watched_copies = watched


@pytest.fixture
def actor(monkeypatch):
    monkeypatch.setattr(makers, "LongCall", Call)
    monkeypatch.setattr(makers, "Watched", Watched)
    return Actor()


@pytest.fixture
def maker(actor):
    return makers.MakerActor("maker_0", actor, 1.0)


@pytest.fixture
def supervisor(maker):
    workplace = SimpleNamespace(start=lambda name, slot: maker, slots_differ=True)
    supervisor = Supervisor(1, workplace, manager=CallbackManager(), limits=Limits())
    supervisor.start()
    return supervisor


HERE = Location(0, "here", "/logs/maker.err")


def test_a_maker_that_nobody_looked_at_is_waited_for_and_what_failed_in_it_is_counted(actor, supervisor):
    actor.starting.end(HERE)
    actor.watched.view = ActorView("maker_0", "maker", doing="generating", since=1.0)
    assert supervisor.is_unfinished
    supervisor.collect_ends()
    assert supervisor.is_unfinished  # it reports so itself now
    actor.working.end(MakerEnd(callback_errors={"Failing": 3}))
    supervisor.collect_ends()
    assert not supervisor.is_unfinished
    assert supervisor.callback_errors == {"Failing": 3}
    (view,) = supervisor.views()
    assert (view.doing, view.log) == ("ended", HERE.log)


def test_a_maker_that_is_not_up_or_still_gets_ready_is_not_waited_for(actor, supervisor):
    assert not supervisor.is_unfinished
    actor.starting.end(HERE)
    actor.watched.view = ActorView("maker_0", "maker", doing="getting ready")
    supervisor.collect_ends()
    assert not supervisor.is_unfinished


def test_a_maker_that_died_has_ended_with_the_reason_and_fails_nobody_who_looks_at_it(actor, maker):
    actor.watched.view = ActorView("maker_0", "maker", doing="generating", callback_errors={"Failing": 2})
    assert maker.look()
    actor.working.error = actor.starting.error = MemoryError("the node ran out of memory")
    assert not maker.has_started()
    assert maker.ended() == MakerEnd("maker_0: the node ran out of memory", callback_errors={"Failing": 2})
    assert not maker.distrust_weights()
    assert maker.view.doing == "ended"


def test_a_process_on_this_machine_is_waited_for_and_killed(actor, maker, monkeypatch):
    signals, alive = [], [True]

    def kill(pid, signal):
        signals.append((pid, signal))
        if not alive[0]:
            raise ProcessLookupError
        alive[0] = signal == 0

    monkeypatch.setattr(makers, "this_node", lambda: "here")
    monkeypatch.setattr(makers.os, "kill", kill)
    assert maker.wait(0.0), "one that has not started has no process"
    actor.starting.end(Location(4711, "here", ""))
    assert maker.has_started()
    assert not maker.wait(0.05)
    assert maker.kill()
    assert (4711, makers.signal.SIGKILL) in signals
    assert maker.wait(0.0)


def test_a_process_on_another_machine_is_left_to_ray(actor, maker, monkeypatch):
    monkeypatch.setattr(makers, "this_node", lambda: "here")
    monkeypatch.setattr(makers.os, "kill", lambda pid, signal: pytest.fail("a process of this machine is meant"))
    actor.starting.end(Location(4711, "elsewhere", "/logs/maker.err"))
    assert maker.has_started()
    assert maker.wait(0.0)
    assert maker.kill()
    assert maker.describe_log() == " (what it printed is in /logs/maker.err on elsewhere)"


def test_the_state_of_copies_is_fetched_from_time_to_time_in_case_the_maker_is_killed(actor, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(makers, "monotonic", lambda: now[0])
    maker = makers.MakerActor("maker_0", actor, 1.0, has_copies=True)
    first, second, last = (PackedState(text) for text in (b"first", b"second", b"last"))
    actor.watched_copies.view = (first,)
    maker.look()
    actor.watched_copies.view = (second,)
    maker.look()
    assert maker.copies == (first,), "not at every look: packing costs the maker time"
    now[0] += makers.COPY_SECONDS + 1
    maker.look()
    assert maker.copies == (second,)
    actor.working.error = MemoryError("the node ran out of memory")
    assert maker.ended().copies == ()
    assert maker.copies == (second,), "it was killed: the last one known"
    alive = makers.MakerActor("maker_1", actor, 1.0, has_copies=True)
    actor.working.end(MakerEnd(copies=(last,)))
    alive.ended()
    assert alive.copies == (last,)


def test_a_maker_packs_its_copies_between_batches_and_only_if_somebody_asked():
    class Counting(MakerCallback):
        made = 0

        def on_make_experience_end(self, experience):
            self.made += 1

    counting = Counting()
    host = MakerHost(None, "maker_0", None, None, 1.0)
    assert host.copies() == ()
    host.snapshot = maker_host.SnapshotOfCopies([counting])
    manager, state = CallbackManager([host.snapshot, counting]), LoopState()
    found = []
    for _ in range(3):
        manager.fire("maker.make_experience_end", state, None)
        manager.fire("maker.batch_end", state)
        found.append(host.copies())
    assert found[0] == (), "nobody had asked"
    return_states(counting, {str(place): packed[0] for place, packed in enumerate(found) if packed})
    assert {place: copy.made for place, copy in counting.actor_copies.items()} == {"1": 2, "2": 3}
