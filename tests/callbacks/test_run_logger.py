"""What the loggers have in common: what is opened when, what is told, and what is not told twice."""

import math
from pathlib import Path

import pytest

from proa import CallbackManager, EvalResult, LogContext, LoopState, RunResult
from proa.callbacks.logged_values import plain_config, sample_table
from proa.callbacks.run_logger import RunLogger
from proa.data.loop import LoopArtifacts, ManifestRow
from proa.data.results import ArmResult, ExperimentResult
from proa.errors import CallbackConfigError


class Recording(RunLogger):
    """A logger whose library is a list."""

    kind = "recording"
    package = "json"

    def __init__(self, earlier=None, before=None, fails=False, **common):
        super().__init__(**common)
        self.calls = []
        self.earlier, self.before, self.fails = earlier, before or {}, fails

    def _open(self, place, run_id, first_step):
        self.calls.append(("open", place.name, run_id, first_step))
        if self.fails:
            raise ConnectionError("nobody there")
        self.place = place
        return run_id or "new"

    def _write(self, values, step):
        self.calls.append(("write", values, step))

    def _write_table(self, name, table, step):
        self.calls.append(("table", name, len(table.rows), step))

    def _write_checkpoint(self, name, facts, step):
        self.calls.append(("checkpoint", name, facts, step))

    def _write_error(self, text, step):
        self.calls.append(("error", text, step))

    def _close(self, status, summary):
        self.calls.append(("close", status, summary))

    def _earlier_id(self, place):
        return self.earlier

    def _logged_before(self, place, run_id):
        return dict(self.before)

    def _rewind(self, first_step):
        self.calls.append(("rewind", first_step))


def step(manager, state, step_idx, **metrics):
    state.global_step = step_idx + 1
    manager.fire("step_end", state, step_idx, metrics=metrics)


def test_a_loop_of_ones_own_is_open_from_train_start_to_train_end(tmp_path):
    logger = Recording()
    manager, state = CallbackManager([logger]), LoopState(output_dir=tmp_path / "mine")
    manager.fire("train_start", state)
    assert (logger.run_id, logger.state_dict()) == ("new", {"run_id": "new"})
    step(manager, state, 0, loss=1.0)
    manager.fire("train_end", state)
    assert logger.calls == [
        ("open", "mine", None, -1),
        ("write", {"loss": 1.0}, 0),
        ("close", "completed", {"status": "completed", "steps_run": 1}),
    ]
    assert logger.run_id is None
    assert logger.place.folder == tmp_path / "mine" / "recording"


def in_experiment(tmp_path, **known):
    return LogContext(tmp_path, config={"name": "my/experiment"}, run_key="a/b", group_name="a", **known)


def test_a_run_is_open_from_run_start_to_run_end(tmp_path):
    logger = Recording()
    manager, ctx = CallbackManager([logger]), in_experiment(tmp_path)
    manager.fire("run_start", ctx)
    assert (ctx.ids["run_id"], ctx.ids["recording:run_id"]) == ("new", "new")
    state = LoopState(output_dir=tmp_path, ctx=ctx)
    manager.fire("train_start", state)
    manager.fire("train_end", state)
    assert logger.run_id == "new"
    manager.fire(
        "run_end", ctx, RunResult("r", "failed", {"reward": 0.5}, error="lost"), ArmResult("a", status="failed")
    )
    assert logger.calls == [
        ("open", "a-b", None, -1),
        ("close", "failed", {"status": "failed", "reward": 0.5, "error": "lost"}),
    ]
    assert (logger.place.project, logger.place.group) == ("my-experiment", "a")


def test_the_summary_of_a_run_holds_what_training_and_its_benchmarks_came_to(tmp_path):
    logger = Recording()
    manager, ctx = CallbackManager([logger]), in_experiment(tmp_path)
    manager.fire("run_start", ctx)
    arm = ArmResult(
        "a", status="failed", metrics={"loss": 2.0, "api_key": "planted-key-7"}, error="the arm's",
        eval_metrics={"sort": {"exact": 0.75, "completion_tokens": 3.0}, "copy": {"exact": 0.5}},
    )  # fmt: skip
    manager.fire("run_end", ctx, RunResult("r", "cancelled", {"reward": 0.5, "loss": 1.0}), arm)
    assert logger.calls[-1] == (
        "close",
        "cancelled",
        {
            "status": "cancelled", "reward": 0.5, "loss": 2.0, "api_key": "REDACTED", "error": "the arm's",
            "sort.exact": 0.75, "sort.completion_tokens": 3.0, "copy.exact": 0.5,
        },
    )  # fmt: skip


def test_the_summary_of_a_run_that_was_stopped_says_why(tmp_path):
    logger = Recording()
    manager, state = CallbackManager([logger]), LoopState(output_dir=tmp_path)
    manager.fire("train_start", state)
    state.stop_training("good enough")
    manager.fire("train_end", state)
    assert logger.calls[-1] == (
        "close", "completed", {"status": "completed", "steps_run": 0, "stop_reason": "good enough"},
    )  # fmt: skip


def test_the_summary_of_an_experiment_is_its_conclusion_and_leaves_out_what_there_is_not(tmp_path):
    logger = Recording()
    result = ExperimentResult("e", "completed", best_arm="a", best_score=0.5, conclusion="a is best")
    CallbackManager([logger]).fire("experiment_end", in_experiment(tmp_path), result)
    facts = {"status": "completed", "best_arm": "a", "best_score": 0.5, "conclusion": "a is best"}
    assert logger.calls == [("open", "e", None, 0), ("close", "completed", facts)]


def test_a_plain_run_has_its_own_name_in_the_common_project_and_no_table_of_arms(tmp_path):
    logger = Recording()
    own = tmp_path / "mine"
    own.mkdir()
    ctx = LogContext(own, config={"name": "mine"}, run_key="mine", extras={"standalone": True})
    manager, state = CallbackManager([logger]), LoopState(output_dir=own, ctx=ctx)
    manager.fire("experiment_start", ctx)
    manager.fire("run_start", ctx)
    assert (logger.place.project, logger.place.folder) == ("proa", own / "recording")
    manager.fire("train_start", state)
    manager.fire("train_end", state)
    artifacts = LoopArtifacts(own, steps_run=3, stop_reason="good enough")
    manager.fire("run_end", ctx, RunResult("r", artifacts=artifacts), ArmResult("mine", status="completed"))
    manager.fire("experiment_end", ctx, ExperimentResult("mine", "completed"))
    summary = {"status": "completed", "steps_run": 3, "stop_reason": "good enough"}
    assert logger.calls == [("open", "mine", None, -1), ("close", "completed", summary)]


@pytest.mark.parametrize(("asked", "own", "in_one"), [("mine", "mine", "mine"), (None, None, "a")])
def test_a_group_that_was_asked_for_takes_the_place_of_the_experiments(tmp_path, asked, own, in_one):
    logger = Recording(group=asked)
    CallbackManager([logger]).fire("train_start", LoopState(output_dir=tmp_path / "alone"))
    assert logger.place.group == own
    logger = Recording(group=asked)
    CallbackManager([logger]).fire("run_start", in_experiment(tmp_path))
    assert logger.place.group == in_one


def test_a_run_that_was_refused_has_no_folder_and_is_not_given_one(tmp_path):
    own = tmp_path / "arm"
    ctx = LogContext(own, config={"name": "compare"}, run_key="arm")
    logger = Recording()
    manager = CallbackManager([logger])
    manager.fire("run_start", ctx)
    manager.fire("run_end", ctx, RunResult("r", "failed"), ArmResult("a", status="failed"))  # it was never made
    assert (logger.calls, own.exists()) == ([], False)
    own.mkdir()
    manager.fire("run_start", ctx)
    manager.fire("train_start", LoopState(output_dir=own, ctx=ctx))
    assert logger.calls == [("open", "arm", None, -1)]
    assert ctx.ids["run_id"] == "new"


def test_an_experiment_keeps_its_id_when_it_is_run_again(tmp_path):
    ids = []
    for folder in (tmp_path, tmp_path, tmp_path / "other"):
        ctx = LogContext(folder)
        CallbackManager([Recording()]).fire("experiment_start", ctx)
        ids.append(ctx.ids["experiment_id"])
    assert ids[0] == ids[1] != ids[2]


RESUMED = {"resumed_from": "step_2", "steps_done": 2}


def test_what_an_earlier_try_left_is_continued_by_a_run_that_is_resumed_and_by_no_other(tmp_path):
    for extras, opened in ((RESUMED, ("open", "a-b", "old", 2)), ({}, ("open", "a-b", None, -1))):
        logger = Recording(earlier="old")
        manager, ctx = CallbackManager([logger]), in_experiment(tmp_path, extras=extras)
        manager.fire("run_start", ctx)
        manager.fire("train_start", LoopState(output_dir=tmp_path, global_step=2, ctx=ctx))
        assert logger.calls == [opened]


def test_a_saved_id_is_that_of_one_run(tmp_path):
    logger = Recording()
    manager, ctx = CallbackManager([logger]), in_experiment(tmp_path, extras=RESUMED)
    logger.load_state_dict({"run_id": "saved"})
    for _ in range(2):
        manager.fire("run_start", ctx)
        manager.fire("run_end", ctx, RunResult("r"), ArmResult("a"))
    assert [call[2] for call in logger.calls if call[0] == "open"] == ["saved", None]


def test_a_run_that_only_had_its_benchmarks_left_goes_on_without_training(tmp_path):
    logger = Recording(earlier="old")
    manager, ctx = CallbackManager([logger]), in_experiment(tmp_path, extras=RESUMED)
    manager.fire("run_start", ctx)
    manager.fire("benchmark_eval", ctx, EvalResult("sort", metrics={"exact": 0.5}), [], None)
    manager.fire("run_end", ctx, None, None)
    assert [call[0] for call in logger.calls] == ["open", "write", "close"]
    assert logger.calls[0][2] == "old"
    assert logger.calls[2][1] == "failed"


def test_the_saved_id_outranks_what_the_folder_says(tmp_path):
    logger = Recording(earlier="of the folder")
    logger.load_state_dict({"run_id": "saved"})
    CallbackManager([logger]).fire("train_start", LoopState(output_dir=tmp_path, resumed_from="step_2", global_step=2))
    assert logger.calls == [("open", tmp_path.name, "saved", 2)]


def test_nothing_is_told_twice_each_metric_by_itself(tmp_path):
    logger = Recording(before={"loss": 3, "sort.exact": 1})
    logger.load_state_dict({"run_id": "old"})
    manager = CallbackManager([logger])
    state = LoopState(output_dir=tmp_path, resumed_from="step_2", global_step=2)
    manager.fire("train_start", state)
    for step_idx in (2, 3, 4):
        step(manager, state, step_idx, loss=1.0)
        manager.fire("eval_end", state, step_idx, "sort", {"exact": 0.5})
        manager.fire("benchmark_eval", LogContext(tmp_path), EvalResult("sort", metrics={"exact": 0.5}), [], step_idx)
    assert logger.calls[1:] == [
        ("write", {"sort.exact": 0.5}, 2),
        ("write", {"sort.exact": 0.5}, 3),
        ("write", {"loss": 1.0}, 4),
        ("write", {"sort.exact": 0.5}, 4),
    ]


def test_a_trainer_that_was_started_again_goes_on_in_the_open_run(tmp_path):
    logger = Recording()
    manager, state, ctx = CallbackManager([logger]), LoopState(output_dir=tmp_path), in_experiment(tmp_path)
    manager.fire("run_start", ctx)
    manager.fire("train_start", state)
    step(manager, state, 0, loss=1.0)
    step(manager, state, 1, loss=1.0)
    manager.fire("train_end", state)
    manager.fire("train_start", LoopState(output_dir=tmp_path, resumed_from="step_1", global_step=1))
    step(manager, state, 1, loss=1.0)
    step(manager, state, 2, loss=1.0)
    assert [call[0] for call in logger.calls] == ["open", "write", "write", "rewind", "write"]
    assert logger.calls[3] == ("rewind", 1)
    assert logger.calls[4][2] == 2


def test_a_benchmark_after_training_stands_where_the_next_step_would(tmp_path):
    logger = Recording(predictions=10)
    manager, ctx = CallbackManager([logger]), in_experiment(tmp_path)
    manager.fire("run_start", ctx)
    state = LoopState(output_dir=tmp_path)
    manager.fire("train_start", state)
    step(manager, state, 0, loss=1.0)
    manager.fire("benchmark_eval", ctx, EvalResult("sort", metrics={"exact": 0.5}), [{"p": 1}] * 99, 0)
    manager.fire("benchmark_eval", ctx, EvalResult("sort", metrics={"exact": 0.75}), [{"p": 1}] * 3, None)
    assert logger.calls[2:] == [
        ("write", {"sort.exact": 0.5}, 0),
        ("table", "sort.predictions", 10, 0),
        ("write", {"sort.exact": 0.75}, 1),
        ("table", "sort.predictions", 3, 1),
    ]


def test_a_checkpoint_is_told_by_name_with_its_scores_and_where_it_lies(tmp_path):
    logger = Recording()
    manager, state = CallbackManager([logger]), LoopState(output_dir=tmp_path)
    manager.fire("train_start", state)
    row = ManifestRow("step_2", 1, 0, "state", "model", step=2, metrics={"sort.exact": 0.5, "api_key": "planted-key-7"})
    for _ in range(2):
        manager.fire("checkpoint_saved", state, row)
    facts = {"step": 2, "path": "model", "final": False, "sort.exact": 0.5, "api_key": "REDACTED"}
    assert logger.calls[1:] == [("checkpoint", "step_2", facts, 1)]


@pytest.mark.parametrize(("error", "status"), [(ValueError("x"), "failed"), (KeyboardInterrupt(), "cancelled")])
def test_how_a_loop_of_ones_own_ended_is_told(tmp_path, error, status):
    logger = Recording()
    manager, state = CallbackManager([logger]), LoopState(output_dir=tmp_path)
    manager.fire("train_start", state)
    state.exception = error
    manager.fire("step_end", state, 0, metrics={"loss": math.nan})  # it was cut short
    manager.fire("eval_end", state, 0, "sort", {"exact": 0.5})
    if status == "failed":
        manager.fire("error", state, error)
    manager.fire("train_end", state)
    told = [("error", "ValueError: x", 0)] if status == "failed" else []
    assert logger.calls[1:] == [*told, ("close", status, {"status": status, "steps_run": 0})]


def test_a_library_that_cannot_open_the_run_is_asked_once(tmp_path):
    logger = Recording(fails=True)
    manager, state = CallbackManager([logger]), LoopState(output_dir=tmp_path)
    manager.fire("train_start", state)
    for step_idx in range(5):
        step(manager, state, step_idx, loss=1.0)
    manager.fire("checkpoint_saved", state, ManifestRow("step_2", 1, 0))
    manager.fire("benchmark_eval", LogContext(tmp_path), EvalResult("sort", metrics={"exact": 0.5}), [{"p": 1}], 4)
    manager.fire("train_end", state)
    assert [call[0] for call in logger.calls] == ["open"]
    assert manager.errors == {"Recording": 1}


def test_nowhere_to_write_is_a_wrong_setting_and_a_folder_of_its_own_is_taken(tmp_path):
    with pytest.raises(CallbackConfigError, match="'recording' has nowhere to write: give it a folder"):
        CallbackManager([Recording()]).fire("train_start", LoopState())
    logger = Recording(folder=tmp_path)
    CallbackManager([logger]).fire("train_start", LoopState())
    assert logger.place.folder == tmp_path / "recording"


def test_a_negative_number_of_predictions_is_refused():
    with pytest.raises(CallbackConfigError, match="at least 0"):
        Recording(predictions=-1)


def test_predictions_are_spread_bounded_and_without_secrets(monkeypatch):
    monkeypatch.setenv("PLANTED_TOKEN", "planted-by-env-7")
    records = [{"text": "x" * 5000, "token": 3, "said": "planted-by-env-7", "info": {"a": [1]}}, {"late": None}]
    table = sample_table(records, 5)
    assert table.columns == ["text", "token", "said", "info", "late"]
    assert [len(str(table.rows[0][0])), *table.rows[0][1:]] == [2000, 3, "REDACTED", '{"a": [1]}', ""]
    assert sample_table([{"n": n} for n in range(7)], 1).rows == [[0]]
    assert sample_table([], 5).rows == []


def test_a_configuration_may_be_a_model_a_mapping_or_nothing(tmp_path):
    class Model:
        def model_dump(self, mode):
            return {"path": "a", "api_key": "planted-key-7"}

    assert plain_config(Model()) == {"path": "a", "api_key": "REDACTED"}
    assert plain_config({"folder": Path("a")}) == {"folder": "a"}
    assert plain_config(ArmResult("a"))["name"] == "a"
    assert plain_config(None) == {}


def test_the_reason_of_a_stop_is_told_without_the_secrets_that_it_quotes(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED_TOKEN", "planted-by-env-8")
    logger = Recording()
    manager, state = CallbackManager([logger]), LoopState(output_dir=tmp_path)
    manager.fire("train_start", state)
    state.stop_reason = "no planted-by-env-8 at https://host/?api_key=abc"
    manager.fire("train_end", state, LoopArtifacts(tmp_path))
    (closed,) = [call for call in logger.calls if call[0] == "close"]
    assert closed[2]["stop_reason"] == "no REDACTED at https://host/?api_key=REDACTED"


def test_metrics_of_hooks_are_logged_at_their_step_and_a_later_value_replaces_the_first(tmp_path):
    logger = Recording()
    manager, state = CallbackManager([logger]), LoopState(output_dir=tmp_path)
    manager.fire("train_start", state)
    step(manager, state, 0, loss=1.0, added=2.0)
    manager.fire("metrics_logged", state, 0, {"added": 2.0, "mine": 3.0})
    manager.fire("metrics_logged", state, 0, {"mine": 4.0})
    assert [call for call in logger.calls if call[0] == "write"] == [
        ("write", {"loss": 1.0, "added": 2.0}, 0), ("write", {"mine": 3.0}, 0), ("write", {"mine": 4.0}, 0),
    ]  # fmt: skip


def test_metrics_of_hooks_that_an_earlier_process_logged_are_not_logged_again(tmp_path):
    logger = Recording(earlier="old", before={"mine": 4})
    manager = CallbackManager([logger])
    state = LoopState(output_dir=tmp_path, resumed_from="step_5", global_step=5)
    manager.fire("train_start", state)
    manager.fire("metrics_logged", state, 4, {"mine": 1.0})
    manager.fire("metrics_logged", state, 5, {"mine": 2.0})
    assert [call for call in logger.calls if call[0] == "write"] == [("write", {"mine": 2.0}, 5)]
