"""Watching a local run: who works, who waits for whom, who was replaced; and a look never changes what is looked at."""

import errno
import threading
import time
from types import SimpleNamespace

import pytest
from tests.runtime.small_run import SmallRun, failing_once, hanging_once

from proa.record.live import LiveFile
from proa.runtime.local import LocalRuntime
from proa.runtime.supervisor import Limits, RunFailedError


class Seeing(LiveFile):
    """Keeps every view, beside writing it."""

    def __init__(self, folder):
        super().__init__(folder, every=0.0)
        self.views = []
        self.looks = 0
        self._looked = threading.Condition()

    def look(self, at):
        super().look(lambda: self.views.append(at()) or self.views[-1])
        with self._looked:
            self.looks += 1
            self._looked.notify_all()

    def hold(self, maker):
        """Have a maker generate for as long as it takes to be looked at: whoever began before is seen in the second
        look from now on, and how a wait grows in the third."""
        step = maker.engine.step

        def looked_at():
            with self._looked:
                enough = self.looks + 3
                assert self._looked.wait_for(lambda: self.looks >= enough, 60.0)
            return step()

        maker.engine.step = looked_at


def watched(run, watch, makers=1, disturb=lambda maker: None, limits=None):
    def make(name):
        maker = run.make_maker(name)
        disturb(maker)
        return maker

    runtime = LocalRuntime(
        run.trainer,
        SimpleNamespace(make=make),
        makers=makers,
        book=run.book,
        store=run.store,
        limits=limits,
        watch=watch,
    )
    runtime.run(run.plan.total_steps, run.plan.update_steps)
    return runtime


def closes(ledger):
    return ledger["leased"] == sum(ledger[key] for key in ("trained", "buffered", "in_flight")) + sum(
        ledger["dropped"].values()
    )


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    run, watch = SmallRun(total_steps=2, max_staleness=0), Seeing(tmp_path_factory.mktemp("live"))
    begun = time.time()
    watched(run, watch, makers=2, disturb=watch.hold)
    assert LiveFile.read(watch.path.parent) == watch.views[-1]
    assert all(begun <= view.time <= time.time() for view in watch.views)
    return watch.views


def test_makers_are_seen_at_work(views):
    at_work = {actor.name for view in views for actor in view.actors if actor.doing.startswith("generating lease")}
    assert at_work == {"maker_0", "maker_1"}
    assert {actor.name for actor in views[0].actors} == {"the trainer", "maker_0", "maker_1"}


def test_the_trainer_is_seen_waiting_for_the_lease_that_somebody_has(views):
    waiting = [view for view in views for wait in view.waits if wait.owner == "the trainer"]
    view = waiting[0]
    (wait,) = [wait for wait in view.waits if wait.owner == "the trainer"]
    assert wait.reason.startswith("lease 0, which maker_")
    trainer = view.actors[0]
    assert (trainer.role, trainer.doing) == ("trainer", f"waiting for {wait.reason}")
    # Both are of one look, but not of one instant: on a busy machine some time passes between.
    assert view.time - trainer.since == pytest.approx(wait.seconds, abs=10.0)
    waits = [wait.seconds for view in waiting for wait in view.waits if wait.reason.startswith("lease 0,")]
    assert waits == sorted(waits)
    assert 0 <= waits[0] < waits[-1]


def test_every_view_has_a_ledger_that_closes_and_counts_that_only_grow(views):
    assert all(closes(view.ledger) for view in views)
    assert [view.step for view in views] == sorted(view.step for view in views)
    # The trainer may begin after the first look; then nobody has said how many steps there are.
    assert {view.of for view in views} <= {0, 2}
    assert max(view.ledger["in_flight"] for view in views) > 0
    assert {tuple(view.versions) for view in views} <= {(0,), (0, 1), (1,), (1, 2), (2,)}


def test_the_last_view_is_of_the_end(views):
    last = views[-1]
    assert (last.runtime, last.step, last.of, last.version, last.waits) == ("local", 2, 2, 2, [])
    assert last.ledger["trained"] == last.ledger["leased"] == 32
    assert [actor.doing for actor in last.actors] == ["ended"] * 3
    assert [actor.health for actor in last.actors] == ["healthy"] * 3
    trainer, *makers = last.actors
    assert sum(maker.leases for maker in makers) == 8
    assert sum(maker.tokens for maker in makers) == trainer.tokens == last.ledger["tokens"]["trained"] > 0
    assert trainer.version == 2
    assert max(maker.version for maker in makers) == 1
    assert all(maker.spent["generate"] > 0 for maker in makers)


def test_a_maker_is_dead_until_it_is_replaced_and_then_its_place_counts_a_restart(tmp_path, caplog):
    def explode():
        raise RuntimeError("no such kernel")

    fail, replacement_works = failing_once(1, explode), threading.Event()

    def disturb(maker):
        fail(maker)
        step = maker.engine.step

        def in_turn():
            if maker.name == "maker_0+1":
                replacement_works.set()
            elif maker.name == "maker_1":  # or it might make all that is left before there is a replacement
                assert replacement_works.wait(60.0)
            return step()

        if maker.name != "maker_0":
            maker.engine.step = in_turn

    watch = Seeing(tmp_path)
    watched(SmallRun(total_steps=2), watch, makers=2, disturb=disturb)
    dead = [actor for view in watch.views for actor in view.actors if actor.health == "dead"]
    assert {actor.name for actor in dead} == {"maker_0"}
    assert {"no such kernel" in actor.reason for actor in dead if actor.reason} <= {True}  # not known at first
    _, first, second = watch.views[-1].actors
    assert (first.name, first.health, first.restarts) == ("maker_0+1", "healthy", 1)
    assert "no such kernel" in first.reason
    assert (second.name, second.restarts, second.reason) == ("maker_1", 0, "")


def test_a_maker_that_hangs_is_dead_when_it_is_given_up(tmp_path, caplog):
    run, watch, limits = SmallRun(total_steps=2), Seeing(tmp_path), Limits()
    watched(run, watch, disturb=hanging_once(run, 1, limits), limits=limits)
    dead = [actor for view in watch.views for actor in view.actors if actor.health == "dead"]
    assert dead
    assert "has had lease" in dead[0].reason


def test_a_run_that_fails_leaves_a_last_view(tmp_path, caplog):
    def broken(maker):
        maker.engine.step = lambda: 1 / 0

    watch = Seeing(tmp_path)
    with pytest.raises(RunFailedError):
        watched(SmallRun(), watch, disturb=broken)
    last = watch.views[-1]
    assert last.actors[0].doing == "ended"
    assert last.actors[1].health == "dead"
    assert closes(last.ledger)


@pytest.fixture(scope="module")
def digest():
    return SmallRun(total_steps=2).run()


def test_looking_changes_nothing(tmp_path, digest):
    run = SmallRun(total_steps=2)
    watched(run, Seeing(tmp_path))
    assert run.digest == digest


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch, caplog, digest):
    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("proa.record.live.write_private", full)
    run = SmallRun(total_steps=2)
    watched(run, LiveFile(tmp_path, every=0.0))
    assert run.digest == digest
    assert caplog.text.count("No space left on device\n") == 1  # said once, in a line
    assert not (tmp_path / "live.json").exists()


def test_a_look_that_fails_is_logged_once_and_does_not_end_the_run(tmp_path, caplog, digest):
    run = SmallRun(total_steps=2)
    look, watch = run.store.room.waits, Seeing(tmp_path)

    def waits():
        raise RuntimeError("cannot look")

    run.store.room.waits = waits
    watched(run, watch, disturb=watch.hold)
    run.store.room.waits = look
    assert run.digest == digest
    assert watch.looks > 3
    assert len([record for record in caplog.records if "cannot look" in record.getMessage()]) == 1
