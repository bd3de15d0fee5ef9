"""A loop that is saved between two steps and goes on elsewhere: the same steps, evals, checkpoints and rows."""

from types import SimpleNamespace

import pytest

from proa import CallbackManager, ManifestRow, StopTraining, TrainingBatch
from proa.actors.activity import Activity
from proa.data.state import LoopState
from proa.lifecycle.spans import Lifecycle
from proa.loop import AfterStep, Resumed, Saver, ScoreFunction, SupervisedLoop
from proa.testing import Recorder


class Shelf(Saver):
    """Keeps what a loop saves, as checkpoints would."""

    def __init__(self, save_every=1, resumed=None, background=False):
        super().__init__(save_every)
        self.states, self.rows, self.finals, self.drained = {}, {}, [], 0
        self.background, self.written, self.resumed = background, [], resumed

    def save(self, name, state):
        assert name not in self.states, "written twice"
        row = ManifestRow(name, state.global_step - 1, state.epoch, step=state.global_step)
        self.states[name], self.rows[name] = self.loop.state_dict(), row
        if self.background:
            self.written.append(row)
            return None
        return row

    def finished(self):
        rows, self.written = (self.written, []) if self.drained else ([], self.written)
        self.drained = 0
        return rows

    def drain(self):
        self.drained += 1

    def mark_final(self, name, metrics):
        self.finals.append((name, metrics))
        return self.rows.get(name) or ManifestRow(name, 0, 0)


def loop_over(shelf, recorder=None, step=None, evaluators=()):
    return SupervisedLoop(
        step or (lambda batch: {"loss": float(batch.data)}),
        callbacks=[recorder or Recorder()],
        evaluators=evaluators,
        saver=shelf,
    )


def batches(epoch):
    return [TrainingBatch(10 * epoch + i) for i in range(3)]


def scores():
    return [ScoreFunction("a", lambda: {"x": 1.0}, run_every=2, baseline=True)]


def went_on(whole, name, **more):
    """A loop that went on from one of its checkpoints, with what it heard."""
    shelf, recorder, seen = Shelf(), Recorder(), []
    loop = loop_over(shelf, recorder, lambda batch: {"loss": float(seen.append(batch.data) or batch.data)}, scores())
    loop.load_state_dict(whole.states[name], whole.rows[name])
    state = loop.fit(batches, num_epochs=2, **more)
    return state, recorder, seen, shelf


# The loop.


@pytest.mark.parametrize("done", range(1, 7))
def test_it_goes_on_with_the_next_batch_and_ends_as_it_would_have(done):
    whole = Shelf()
    expected = loop_over(whole, evaluators=scores()).fit(batches, num_epochs=2)
    state, recorder, seen, _ = went_on(whole, f"step_{done}")
    assert seen == [0, 1, 2, 10, 11, 12][done:]
    assert state.to_dict() == expected.to_dict() | {"resumed_from": f"step_{done}"}
    assert recorder.events[0] == "train_start"
    assert recorder.events.count("step_end") == 6 - done


def test_the_starts_of_what_is_open_fire_again_and_its_checkpoint_is_told_of_there():
    whole = Shelf()
    loop_over(whole, evaluators=scores()).fit(batches, num_epochs=2)
    _, recorder, _, _ = went_on(whole, "step_4")
    assert [(fired.event, fired.step_idx) for fired in recorder.fired[:5]] == [
        ("train_start", None), ("epoch_start", None), ("checkpoint_saved", None), ("step_start", None), ("step_end", 4),
    ]  # fmt: skip


def test_baseline_evals_are_not_taken_again():
    whole = Shelf()
    loop_over(whole, evaluators=scores()).fit(batches, num_epochs=2)
    _, recorder, _, _ = went_on(whole, "step_1")
    assert [fired.step_idx for fired in recorder.fired if fired.event == "eval_end"] == [1, 3, 5]


def test_from_its_last_step_only_what_is_missing_comes():
    whole = Shelf()
    loop_over(whole, evaluators=scores()).fit(batches, num_epochs=2)
    _, recorder, _, shelf = went_on(whole, "step_6")
    assert recorder.events == ["train_start", "epoch_start", "checkpoint_saved", "epoch_end", "train_end"]
    assert (shelf.states, shelf.finals) == ({}, [("step_6", {"a.x": 1.0, "loss": 12.0})])


def test_from_a_final_checkpoint_no_epoch_is_opened():
    whole = Shelf(save_every=4)
    loop_over(whole).fit(batches, num_epochs=2)
    assert list(whole.states) == ["step_4", "final"]
    _, recorder, seen, _ = went_on(whole, "final")
    assert seen == []
    assert recorder.events == ["train_start", "checkpoint_saved", "eval_start", "eval_end", "train_end"]


@pytest.mark.parametrize("at", [2, 3])
def test_a_stop_that_was_asked_for_before_the_checkpoint_holds(at):
    def fit(shelf, resumed=None):
        manager = CallbackManager()
        recorder = manager.add(Recorder())
        manager.on("step_end")(lambda state: state.stop_training("enough") if state.global_step == at else None)
        loop = SupervisedLoop(lambda batch: {}, callbacks=manager, saver=shelf)
        if resumed is not None:
            loop.load_state_dict(*resumed)
        return loop.fit(batches, num_epochs=2), recorder.events

    whole = Shelf()
    stopped, _ = fit(whole)
    state, events = fit(Shelf(), (whole.states[f"step_{at}"], whole.rows[f"step_{at}"]))
    assert (state.global_step, state.stop_reason, state.stopped_by) == (at, "enough", stopped.stopped_by)
    assert events == ["train_start", "epoch_start", "checkpoint_saved", "epoch_end", "train_end"]


def test_without_its_row_a_state_is_gone_on_with_too_and_saved_where_it_is_due():
    whole = Shelf()
    loop_over(whole).fit(batches, num_epochs=2)
    loop = loop_over(Shelf())
    loop.load_state_dict(whole.states["step_5"])
    assert loop.state.resumed_from == "step_5"
    assert loop.fit(batches, num_epochs=2).global_step == 6


def test_a_second_fit_begins_anew():
    whole = Shelf()
    loop_over(whole).fit(batches, num_epochs=2)
    loop = SupervisedLoop(lambda batch: {})
    loop.load_state_dict(whole.states["step_5"], whole.rows["step_5"])
    loop.fit(batches, num_epochs=2)
    state = loop.fit(batches)
    assert (state.global_step, state.resumed_from) == (3, None)


def test_asked_to_leave_it_saves_at_the_next_boundary_and_raises():
    shelf = Shelf(save_every=100)

    def step(batch):
        if batch.data == 1:
            shelf.stop.request("SIGTERM")
        return {}

    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        loop_over(shelf, recorder, step).fit(batches)
    assert list(shelf.states) == ["step_2"]
    assert recorder.events[-3:] == ["checkpoint_saved", "epoch_end", "train_end"]


def test_asked_to_leave_where_a_checkpoint_was_due_it_is_written_once():
    shelf = Shelf(save_every=1)
    shelf.stop.request("SIGINT")
    with pytest.raises(KeyboardInterrupt):
        loop_over(shelf).fit(batches)
    assert list(shelf.states) == ["step_1"]


def test_a_step_that_is_left_in_its_middle_has_nothing_due_after_it():
    def step(batch):
        if batch.data == 2:
            raise StopTraining("no more")
        return {}

    shelf, recorder = Shelf(), Recorder()
    loop_over(shelf, recorder, step, [ScoreFunction("a", dict, run_every=1)]).fit(batches)
    assert list(shelf.states) == ["step_1", "step_2"]
    assert recorder.events.count("eval_end") == 2
    assert [name for name, _ in shelf.finals] == ["step_2"]


def test_before_a_step_is_done_nothing_is_due():
    def step(batch):
        raise StopTraining("not even one")

    shelf, recorder = Shelf(), Recorder()
    loop_over(shelf, recorder, step, [ScoreFunction("a", dict, run_every=1, baseline=True)]).fit(batches)
    assert list(shelf.states) == ["final"]
    assert recorder.events.count("eval_end") == 1


# What comes after a step.


def after_steps(shelf, evaluators=(), resumed=None):
    recorder, state = Recorder(), LoopState(metrics={"loss": 0.5})
    loop = SimpleNamespace(activity=Activity(), state_dict=lambda: {"loop": {}}, stop_if_requested=lambda: None)
    after = AfterStep(Lifecycle(CallbackManager([recorder]), state), evaluators, shelf, loop)
    if resumed is not None:
        state.global_step = resumed.row.step
        after.resume(resumed)
    return after, state, recorder


def resumed_at(step):
    return Resumed({"after": {"evaluated_at": {"a": step}}}, ManifestRow(f"step_{step}", step - 1, 0, step=step))


def test_the_checkpoint_gone_on_from_is_told_of_once():
    after, _, recorder = after_steps(Shelf(), resumed=resumed_at(3))
    after.announce_resumed()
    after.announce_resumed()
    after.run_final()
    assert recorder.events == ["checkpoint_saved"]
    assert [row.name for row in after.rows] == ["step_3"]


def test_it_is_told_of_at_the_end_if_nobody_was_told_before():
    after, _, recorder = after_steps(Shelf(), resumed=resumed_at(3))
    after.run_final()
    assert recorder.events == ["checkpoint_saved"]


def test_what_the_resumed_step_had_is_not_done_again_and_its_row_becomes_final():
    shelf = Shelf()
    after, _, recorder = after_steps(shelf, [ScoreFunction("a", dict, run_every=3)], resumed_at(3))
    after.run_due()
    after.save_now()
    after.run_final()
    assert (shelf.states, recorder.events.count("eval_end")) == ({}, 0)
    assert shelf.finals == [("step_3", {"loss": 0.5})]


def test_an_eval_that_the_resumed_step_did_not_have_comes_at_the_end():
    after, state, recorder = after_steps(Shelf(), [ScoreFunction("b", lambda: {"x": 2.0})], resumed_at(3))
    after.run_final()
    assert recorder.events.count("eval_end") == 1
    assert after.state_dict() == {"evaluated_at": {"a": 3, "b": 3}}
    assert state.metrics["b.x"] == 2.0


def test_rows_written_in_the_background_are_told_of_before_the_next_save():
    order = []
    shelf = Shelf(background=True)
    after, state, recorder = after_steps(shelf)
    shelf.loop.state_dict = lambda: order.append(
        ("saved", state.global_step, recorder.events.count("checkpoint_saved"))
    )
    for step in (1, 2, 3):
        state.global_step = step
        after.run_due()
    assert order == [("saved", 1, 0), ("saved", 2, 1), ("saved", 3, 2)]
    after.run_final()
    assert recorder.events.count("checkpoint_saved") == 3
    assert [row.name for row in after.rows] == ["step_1", "step_2", "step_3"]


def test_saving_now_waits_until_it_is_on_disk():
    shelf = Shelf(save_every=0, background=True)
    after, state, recorder = after_steps(shelf)
    state.global_step = 5
    after.save_now()
    assert (list(shelf.states), recorder.events) == (["step_5"], ["checkpoint_saved"])
    after.save_now()
    assert (list(shelf.states), recorder.events) == (["step_5"], ["checkpoint_saved"])


def test_a_final_checkpoint_in_the_background_is_told_of_before_the_end():
    shelf = Shelf(save_every=0, background=True)
    after, state, recorder = after_steps(shelf)
    state.global_step = 5
    after.run_final()
    assert (list(shelf.states), recorder.events) == (["final"], ["checkpoint_saved"])
    assert shelf.finals == []


@pytest.mark.parametrize("name", ["output_dir", "rank", "world_size", "resumed_from"])
def test_what_belongs_to_a_run_of_its_own_is_not_gone_on_with(name):
    state = LoopState(output_dir="here", rank=1, world_size=2)
    saved = LoopState(output_dir="there", rank=7, world_size=9, resumed_from="step_1", global_step=4, epoch=1)
    Resumed({"loop": saved.to_dict()}).restore(state)
    expected = {"output_dir": "here", "rank": 1, "world_size": 2, "resumed_from": "step_4"}
    assert getattr(state, name) == expected[name]
    assert (state.global_step, state.epoch) == (4, 1)
