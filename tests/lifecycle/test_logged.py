"""What hooks log is a metric of its step: in the step's row, or in a further row of the same step."""

import json

import pytest

from proa import (
    Callback,
    CallbackManager,
    LoopState,
    MakerCallback,
    Priority,
    TrainerCallback,
    TrainingBatch,
    TrainState,
)
from proa.callbacks import CsvMetrics, JsonlMetrics
from proa.errors import HookError
from proa.lifecycle import Lifecycle
from proa.loop import SaveFunction, ScoreFunction, SupervisedLoop
from proa.testing import assert_lifecycle


class Rows(Callback):
    """Keeps the rows as a record would write them."""

    priority = Priority.RECORD

    def __init__(self):
        self.rows = []

    def on_step_end(self, state, step_idx, batch, metrics):
        self.rows.append((step_idx, dict(metrics)))

    def on_metrics(self, state, step_idx, metrics):
        self.rows.append((step_idx, dict(metrics)))


def fit(*callbacks, steps=2, **loop):
    """A run with evals after every second step."""
    return SupervisedLoop(
        lambda batch: {"loss": 1.0},
        callbacks=list(callbacks),
        evaluators=[ScoreFunction("sort", lambda: {"exact": 0.5}, run_every=2)],
        **loop,
    ).fit(lambda epoch: [TrainingBatch(None) for _ in range(steps)])


def logging_at(*events):
    """A manager with a function on each of these moments that logs the moment's name."""
    manager = CallbackManager()
    for number, event in enumerate(events):
        manager.on(event)(lambda state, event=event, number=number: state.log(event, number))
    return manager


def test_what_is_logged_before_the_step_ends_is_in_its_row():
    rows = Rows()
    fit(rows, logging_at("train_start", "epoch_start", "step_start"), steps=1)
    assert rows.rows == [(0, {"loss": 1.0, "train_start": 0, "epoch_start": 1, "step_start": 2})]


def test_what_is_logged_later_follows_as_a_row_of_the_same_step():
    rows = Rows()
    saver = SaveFunction(lambda name, state: None)
    fit(rows, logging_at("step_end", "eval_end", "epoch_end", "train_end"), saver=saver)
    assert rows.rows == [
        (0, {"loss": 1.0}), (0, {"step_end": 0}),
        (1, {"loss": 1.0}), (1, {"step_end": 0}), (1, {"eval_end": 1}), (1, {"epoch_end": 2}), (1, {"train_end": 3}),
    ]  # fmt: skip


@pytest.mark.parametrize("priority", [Priority.DEFAULT, Priority.CONTROL, Priority.LOGGING, Priority.LOGGING - 5])
def test_what_a_hook_adds_to_the_metrics_after_the_record_follows(priority):
    rows, manager = Rows(), CallbackManager()
    manager.add(rows)
    manager.on("step_end", priority=priority)(lambda metrics: metrics.update(mine=7))
    state = fit(manager, steps=1)
    assert rows.rows == [(0, {"loss": 1.0}), (0, {"mine": 7})]
    assert state.metrics["mine"] == 7


def test_what_a_hook_adds_before_the_record_is_in_the_row_alone():
    rows, manager = Rows(), CallbackManager()
    manager.add(rows)
    manager.on("step_end", priority=Priority.METRICS)(lambda metrics: metrics.update(mine=7))
    state = fit(manager, steps=1)
    assert rows.rows == [(0, {"loss": 1.0, "mine": 7})]
    assert state.metrics["mine"] == 7


def test_a_step_that_was_cut_short_loses_nothing_that_was_logged():
    rows, manager = Rows(), logging_at("step_start")
    manager.add(rows)

    def fail(batch):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        SupervisedLoop(fail, callbacks=manager).fit(lambda epoch: [TrainingBatch(None)])
    assert rows.rows == [(0, {}), (-1, {"step_start": 0})]


def test_an_eval_in_the_background_logs_to_its_own_step():
    rows, state = Rows(), LoopState(global_step=5)
    manager = logging_at("eval_end")
    manager.add(rows)
    with Lifecycle(manager, state).evaluation("sort", 2):
        pass
    assert rows.rows == [(2, {"eval_end": 0})]


def test_what_is_logged_for_a_row_follows_with_the_next():
    manager, heard = CallbackManager(), []

    @manager.on("metrics_logged")
    def again(state, step_idx, metrics):
        heard.append((step_idx, dict(metrics)))
        state.log("again", step_idx)

    manager.on("step_end")(lambda state: state.log("mine", 1))
    fit(manager, steps=2)
    # At the end of training two rows may follow: before loggers close, and after.
    assert heard[:2] == [(0, {"mine": 1}), (1, {"mine": 1})]
    assert all(metrics == {"again": 1} for _, metrics in heard[2:])


def test_files_have_what_was_logged_at_the_end_of_training_and_are_closed(tmp_path):
    class Last(Callback):
        def on_train_end(self, state, artifacts):
            state.log("last", 1)

    class AfterLoggers(Last):
        priority = Priority.LOGGING - 1

        def on_train_end(self, state, artifacts):
            state.log("very_last", 2)

    json_file, csv_file = JsonlMetrics(), CsvMetrics()
    fit(json_file, csv_file, Last(), AfterLoggers(), steps=1, output_dir=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row.get("last"), row.get("very_last")) for row in rows[-2:]] == [(0, 1, None), (0, None, 2)]
    assert (tmp_path / "metrics.csv").read_text().splitlines()[0].endswith("last,very_last")
    assert json_file._file is csv_file._file is None


class Hooked(TrainerCallback):
    """Has no state, and logs all the same."""

    def on_batch_start(self):
        self.log("batch_start", 1)

    def on_fit_end(self):
        self.log("fit_end", 2)


def test_hooks_without_a_state_log_too():
    rows = Rows()
    fit(rows, Hooked(), steps=1)
    assert rows.rows == [(0, {"loss": 1.0, "batch_start": 1}), (0, {"fit_end": 2})]


def test_a_run_within_a_run_logs_to_itself():
    inner, outer = Rows(), Rows()

    class Trains(TrainerCallback):
        def on_batch_start(self):
            fit(inner, Hooked(), steps=1)
            self.log("outer", 1)

    fit(outer, Trains(), steps=1)
    assert inner.rows[0] == (0, {"loss": 1.0, "batch_start": 1})
    assert outer.rows == [(0, {"loss": 1.0, "outer": 1})]


@pytest.mark.parametrize("family", [Callback, TrainerCallback, MakerCallback])
def test_without_a_trainer_or_maker_there_is_nothing_to_log_to(family):
    with pytest.raises(HookError, match=r"Mine.log\('x', …\): there is no step to log to"):
        type("Mine", (family,), {})().log("x", 1)


def test_a_manager_is_left_as_it_was():
    manager = CallbackManager([Rows()])
    before = {event: manager.explain(event) for event in ("step_end", "train_end")}
    fit(manager, steps=1)
    assert {event: manager.explain(event) for event in ("step_end", "train_end")} == before


def test_a_loop_that_fires_by_hand_has_it_in_the_state():
    manager, rows = CallbackManager(), Rows()
    manager.add(rows)
    manager.on("step_start")(lambda state: state.log("mine", 1))
    state = TrainState(metrics={"loss": 1.0})
    manager.fire("step_start", state)
    state.global_step = 1
    manager.fire("step_end", state)
    assert rows.rows == [(0, {"loss": 1.0, "mine": 1})]


def test_a_trainer_whose_hooks_log_everywhere_keeps_the_lifecycle():
    def train(manager):
        for event in ("train_start", "step_start", "step_end", "eval_end", "epoch_end", "train_end"):
            manager.on(event)(lambda state, event=event: state.log(event, 1))
        SupervisedLoop(
            lambda batch: {"loss": 1.0},
            callbacks=manager,
            evaluators=[ScoreFunction("sort", lambda: {"exact": 0.5}, run_every=1)],
        ).fit(lambda epoch: [TrainingBatch(None)] * 2)

    conformance = assert_lifecycle(train)
    assert "metrics_logged" in {fired.event for fired in conformance.success}


def test_the_loss_of_the_only_loss_eval_has_a_short_name_too(tmp_path):
    def run(*names):
        loop = SupervisedLoop(
            lambda batch: {"loss": 1.0},
            callbacks=[JsonlMetrics(tmp_path / f"{len(names)}.jsonl")],
            evaluators=[ScoreFunction(name, lambda: {"eval_loss": 0.25}) for name in names],
        )
        return loop.fit(lambda epoch: [TrainingBatch(None)]).metrics

    assert run("held_out") == {"loss": 1.0, "held_out.eval_loss": 0.25, "eval_loss": 0.25}
    last = json.loads((tmp_path / "1.jsonl").read_text().splitlines()[-1])
    assert (last["held_out.eval_loss"], last["eval_loss"]) == (0.25, 0.25)
    assert "eval_loss" not in run("one", "other")
