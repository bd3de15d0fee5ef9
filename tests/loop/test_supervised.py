"""The supervised loop: counting, evals, checkpoints, stops, results."""

import pytest

from proa import CallbackManager, ManifestRow, TrainingBatch
from proa.errors import HookError
from proa.loop import SaveFunction, ScoreFunction, SupervisedLoop
from proa.testing import Recorder


def make(tmp_path=None, *, callbacks=None, step=None, evaluators=(), save_every=0):
    def save(name, state):
        return ManifestRow(name, state.global_step - 1, state.epoch, step=state.global_step)

    return SupervisedLoop(
        step or (lambda batch: {"loss": float(batch.data)}),
        callbacks=callbacks,
        evaluators=evaluators,
        saver=SaveFunction(save, save_every),
        output_dir=tmp_path,
    )


def batches(epoch):
    return [TrainingBatch(10 * epoch + i) for i in range(3)]


def test_steps_are_counted_over_epochs_and_within_them():
    seen = []
    manager = CallbackManager()
    manager.on("step_end")(
        lambda state, step_idx, batch: seen.append((step_idx, state.global_step, state.epoch, state.step, batch.data))
    )
    state = make(callbacks=manager).fit(batches, num_epochs=2)
    assert seen == [
        (0, 1, 0, 1, 0),
        (1, 2, 0, 2, 1),
        (2, 3, 0, 3, 2),
        (3, 4, 1, 1, 10),
        (4, 5, 1, 2, 11),
        (5, 6, 1, 3, 12),
    ]
    assert (state.global_step, state.num_epochs) == (6, 2)


@pytest.mark.parametrize(("max_steps", "steps"), [(-1, 6), (4, 4), (3, 3), (0, 0), (99, 6)])
def test_max_steps_is_a_limit(max_steps, steps):
    assert make().fit(batches, num_epochs=2, max_steps=max_steps).global_step == steps


def test_evals_come_before_the_checkpoint_and_both_when_due():
    recorder = Recorder()
    evaluators = [
        ScoreFunction("a", lambda: {"x": 1.0}, run_every=2, baseline=True),
        ScoreFunction("end", lambda: {"x": 2.0}),
    ]
    state = make(callbacks=[recorder], evaluators=evaluators, save_every=2).fit(batches)
    moments = [(f.event, f.step_idx) for f in recorder.fired if f.event in ("step_end", "eval_end", "checkpoint_saved")]
    assert moments == [
        ("eval_end", -1), ("step_end", 0), ("step_end", 1), ("eval_end", 1), ("checkpoint_saved", None),
        ("step_end", 2), ("eval_end", 2), ("eval_end", 2), ("checkpoint_saved", None),
    ]  # fmt: skip
    assert state.metrics == {"loss": 2.0, "a.x": 1.0, "end.x": 2.0}


def test_the_last_checkpoint_is_final_and_not_written_twice():
    ends = []
    manager = CallbackManager()
    manager.on("train_end")(lambda artifacts: ends.append([(row.name, row.final) for row in artifacts.checkpoints]))
    make(callbacks=manager, save_every=2).fit(batches)
    make(callbacks=manager, save_every=3).fit(batches)
    make(callbacks=manager).fit(batches)
    assert ends == [[("step_2", False), ("final", True)], [("step_3", True)], [("final", True)]]


@pytest.mark.parametrize("event", ["train_start", "epoch_start", "step_start", "step_end", "eval_end"])
def test_a_stop_ends_after_the_current_step_with_its_evals_and_its_checkpoint(event, tmp_path):
    manager, ends = CallbackManager(), []
    recorder = manager.add(Recorder())
    manager.on(event)(lambda state: state.stop_training("enough"))
    manager.on("train_end")(lambda artifacts: ends.append(artifacts))
    evaluators = [ScoreFunction("a", lambda: {"x": 1.0}, run_every=1)]
    state = make(tmp_path, callbacks=manager, evaluators=evaluators, save_every=1).fit(batches, num_epochs=3)
    steps = 0 if event == "train_start" else 1
    assert state.global_step == steps
    assert recorder.events[-1] == "train_end"
    assert recorder.events.count("eval_end") == 1
    assert recorder.events.count("checkpoint_saved") == 1
    artifacts = ends[0].as_dict()
    assert (artifacts["steps_run"], artifacts["stop_reason"]) == (steps, "enough")
    assert artifacts["run_dir"] == str(tmp_path)


def test_a_logger_that_always_fails_changes_nothing_but_its_count(caplog):
    from proa import Callback, ErrorPolicy

    def fail(self, *args, **kwargs):
        raise OSError("no network")

    hooks = dict.fromkeys(Callback.hooks, fail)
    quiet, noisy = CallbackManager([Recorder()]), CallbackManager([Recorder()])
    logger = type("Logger", (Callback,), {**hooks, "error_policy": ErrorPolicy.LOG})()
    noisy.add(logger)
    plain = make(callbacks=quiet, save_every=2).fit(batches)
    disturbed = make(callbacks=noisy, save_every=2).fit(batches)
    assert plain.to_dict() == disturbed.to_dict()
    assert quiet.callbacks[0].fired == noisy.callbacks[0].fired
    assert noisy.errors == {"Logger": 7}  # train_start, 3 steps, 2 checkpoints, train_end


def test_callback_errors_are_in_the_result(caplog):
    from proa import ErrorPolicy

    manager, ends = CallbackManager(), []
    manager.on("step_end", error_policy=ErrorPolicy.LOG)(lambda: 1 / 0)
    manager.on("train_end")(lambda artifacts: ends.append(artifacts))
    make(callbacks=manager).fit(batches)
    assert ends[0].callback_errors == {"<lambda>": 3}


def test_a_maker_callback_is_refused_by_the_loop():
    from proa import MakerCallback

    with pytest.raises(HookError, match="given to a trainer"):
        make(callbacks=[MakerCallback()])
    with pytest.raises(HookError, match="given to a trainer"):
        make(callbacks=CallbackManager([MakerCallback()]))


def test_a_training_step_may_ask_to_stop_and_what_is_due_still_comes():
    from proa import StopTraining

    def step(batch):
        if batch.data == 2:
            raise StopTraining("no more")
        return {"loss": 0.0}

    manager = CallbackManager()
    recorder = manager.add(Recorder())
    state = make(callbacks=manager, step=step, evaluators=[ScoreFunction("end", lambda: {"x": 1.0})]).fit(batches)
    assert (state.global_step, state.stop_reason, state.stopped_by) == (2, "no more", "the training step")
    assert recorder.events[-4:] == ["eval_start", "eval_end", "checkpoint_saved", "train_end"]


def test_a_saver_that_does_not_fill_in_the_step_is_not_asked_twice():
    saved = []

    def save(name, state):
        saved.append(name)
        return ManifestRow(name, state.global_step - 1, 0)

    SupervisedLoop(lambda batch: {}, saver=SaveFunction(save, 3)).fit(batches)
    assert saved == ["step_3"]


def test_batches_that_are_no_function_are_refused_before_anything_starts():
    with pytest.raises(TypeError, match="lambda epoch: batches"):
        make().fit([TrainingBatch(0)])


def test_a_loop_whose_gradients_are_0_says_so_and_no_more_than_it_knows(caplog):
    make(step=lambda batch: {"loss": 1.0, "grad_norm": 0.0}).fit(batches)
    assert [record.getMessage() for record in caplog.records] == [
        "the gradient of every step was 0, so nothing was learned"
    ]
