"""EvSys's page about `Callback`, statement by statement."""

import asyncio
import inspect
import json
import shutil
from pathlib import Path

import pytest
from tests.ancestors.listeners import FromCallbackPage, Heard
from tests.ancestors.runs import SFT
from tests.ancestors.signatures import differences
from tests.small import DETACHED

from proa import (
    ArmResult,
    Callback,
    CallbackManager,
    EvalResult,
    ExperimentResult,
    LogContext,
    LoopArtifacts,
    LoopState,
    ManifestRow,
    RunConfig,
    RunResult,
    TrainerCallback,
    TrainingBatch,
    recipes,
)
from proa.errors import HookError
from proa.lifecycle import MOMENTS

HOOKS = {
    "on_train_start": {"state": LoopState},
    "on_train_end": {"state": LoopState, "artifacts": LoopArtifacts},
    "on_step_end": {"state": LoopState, "step_idx": int, "batch": TrainingBatch, "metrics": dict[str, float]},
    "on_checkpoint": {"state": LoopState, "row": ManifestRow},
    "on_eval": {"state": LoopState, "step_idx": int, "eval_name": str, "metrics": dict[str, float]},
    "on_experiment_start": {"ctx": LogContext},
    "on_group_start": {"ctx": LogContext, "group_name": str},
    "on_run_start": {"ctx": LogContext},
    "on_benchmark_eval": {"ctx": LogContext, "eval_result": EvalResult, "predictions": list},
    "on_run_end": {"ctx": LogContext, "run_result": RunResult, "arm": ArmResult},
    "on_experiment_end": {"ctx": LogContext, "result": ExperimentResult},
}

# -- all hooks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_is_not_overridden_does_nothing(hook):
    assert getattr(Callback(), hook)(*(None for _ in HOOKS[hook])) is None


@pytest.mark.parametrize("hook", HOOKS)
def test_the_signature_of(hook):
    keyword = {"step": None} if hook == "on_benchmark_eval" else {}
    assert differences(getattr(Callback, hook), HOOKS[hook], keyword=keyword) == ""


@pytest.mark.parametrize("hook", HOOKS)
def test_the_arguments_have_the_documented_types_in_runs(hook, grpo_run, sft_run, experiment):
    for heard in (grpo_run.hooks, sft_run.hooks, experiment.hooks):
        for call in heard.named(hook):
            for name, kind in HOOKS[hook].items():
                value = call.state if name == "state" else call.given[name]
                if name == "metrics":
                    assert {type(key) for key in value} == {str}
                    assert {type(number) for number in value.values()} == {float}
                else:
                    assert isinstance(value, kind)
    assert experiment.hooks.named(hook)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_one_moment_and_its_docstring_says_when_that_is(hook):
    called = [event for event in MOMENTS if CallbackManager([_only(hook)]).explain(event)]
    (event,) = called
    said = " ".join(inspect.getdoc(getattr(Callback, hook)).split())
    assert said.startswith(MOMENTS[event].doc)
    assert all(f"{name}: " in said for name in HOOKS[hook])


def _only(hook):
    keyword = ", *, step=None" if hook == "on_benchmark_eval" else ""
    function = eval(f"lambda self, {', '.join(HOOKS[hook])}{keyword}: None")
    return type("Mine", (Callback,), {hook: function})()


def test_a_bag_of_arguments_is_no_hook():
    class Bag(Callback):
        def on_step_end(self, event): ...

    with pytest.raises(HookError, match=r"on_step_end\(self, state, step_idx, batch, metrics\)"):
        CallbackManager([Bag()])


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_a_plain_function(hook):
    assert not inspect.iscoroutinefunction(getattr(Callback, hook))


def test_an_async_hook_is_refused_with_what_to_do_instead():
    class Asynchronous(Callback):
        async def on_train_start(self, state): ...

    with pytest.raises(HookError, match="create_task"):
        CallbackManager([Asynchronous()])


STARTS_TASKS = ["on_train_start", "on_step_end", "on_checkpoint", "on_eval", "on_run_start", "on_experiment_start"]


class StartsTasks(Callback):
    """Starts one task in each of these hooks."""

    def __init__(self):
        self.started, self.done = [], []

    def _start(self, hook):
        self.started.append(hook)
        asyncio.create_task(self._send(hook))  # noqa: RUF006 - the run's loop keeps it

    async def _send(self, hook):
        await asyncio.sleep(0)
        self.done.append(hook)

    def on_train_start(self, state):
        self._start("on_train_start")

    def on_step_end(self, state, step_idx, batch, metrics):
        self._start("on_step_end")

    def on_checkpoint(self, state, row):
        self._start("on_checkpoint")

    def on_eval(self, state, step_idx, eval_name, metrics):
        self._start("on_eval")

    def on_run_start(self, ctx):
        self._start("on_run_start")

    def on_experiment_start(self, ctx):
        self._start("on_experiment_start")


def test_tasks_that_hooks_create_are_run(tmp_path):
    tasks = StartsTasks()
    settings = {**SFT, "eval": [{"name": "loss", "kind": "loss", "count": 4, "run_every": 1}]}
    recipes.sft(**settings, checkpoint={"save_every": 1}, name="run", output_dir=tmp_path, callbacks=[tasks])
    assert sorted(tasks.done) == sorted(tasks.started)
    assert set(tasks.done) == set(STARTS_TASKS)


# -- the loop ------------------------------------------------------------------------------------------------------


def test_train_start_fires_once_before_the_first_step(grpo_run, sft_run):
    for run in (grpo_run, sft_run):
        start = run.hooks.place("on_train_start")
        assert start < run.hooks.names.index("on_step_end")
        assert (run.hooks[start].state.global_step, run.hooks[start].on_disk["steps"]) == (0, [])
    assert grpo_run.hooks.place("on_train_start") < grpo_run.hooks.names.index("on_batch_start")


class WritesLog(Callback):
    """Opens a file when training starts, with the configuration in it, and closes it at the end."""

    def __init__(self, path):
        self.path = path

    def on_train_start(self, state):
        self.file = self.path.open("w")
        json.dump(state.ctx.run_config.model_dump(mode="json"), self.file)

    def on_step_end(self, state, step_idx, batch, metrics):
        self.file.write(f"\n{step_idx}")

    def on_train_end(self, state, artifacts):
        self.file.write(f"\n{artifacts.steps_run} of {artifacts.total_requested_steps}")
        self.file.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    log = WritesLog(folder / "log.txt")
    recipes.sft(**{**SFT, "eval": []}, name="run", output_dir=folder, callbacks=[log])
    return log


def test_a_log_is_opened_and_the_configuration_written_before_the_first_step(written):
    config, *steps, _ = written.path.read_text().splitlines()
    assert RunConfig(**json.loads(config)).total_steps == 3
    assert steps == list("012345")


def test_a_log_is_completed_and_closed_at_the_end(written):
    assert written.path.read_text().endswith("\n6 of 6")
    assert written.file.closed


def test_a_wandb_run_is_there_before_the_first_step(grpo_run):
    (start,) = grpo_run.hooks.named("on_train_start")
    assert start.ids["run_id"] == "run rl"  # which `on_run_start` had made


def test_train_end_fires_once_after_the_loop_and_the_final_checkpoint(grpo_run, sft_run):
    for run, steps in ((grpo_run, 8), (sft_run, 6)):
        end = run.hooks.place("on_train_end")
        assert run.hooks[end].on_disk["steps"] == list(range(steps))
        assert {"on_step_end", "on_eval", "on_checkpoint", "on_batch_end"}.isdisjoint(run.hooks.names[end:])
        last = run.hooks[end].given["artifacts"].checkpoints[-1]
        assert (last.step, last.final, Path(last.state_path).is_dir()) == (steps, True, True)


def test_train_end_fires_once_after_an_error_too(failed_run):
    assert failed_run.hooks.counts["on_train_end"] == 1
    assert failed_run.hooks.named("on_train_end")[0].given["artifacts"].steps_run == 2


def test_step_end_fires_after_every_step(grpo_run, sft_run):
    for run, steps in ((grpo_run, 8), (sft_run, 6)):
        assert [call.given["step_idx"] for call in run.hooks.named("on_step_end")] == list(range(steps))


def test_step_end_fires_when_the_row_of_its_metrics_is_written(grpo_run, sft_run):
    for run in (grpo_run, sft_run):
        for call in run.hooks.named("on_step_end"):
            assert call.on_disk["steps"] == list(range(call.given["step_idx"] + 1))


def test_what_a_hook_is_given_is_what_was_written(sft_run):
    rows = [json.loads(line) for line in (sft_run.folder / "metrics.jsonl").read_text().splitlines()]
    written = [{name: row[name] for name in ("loss", "grad_norm", "learning_rate")} for row in rows if "loss" in row]
    given = [call.given["metrics"] for call in sft_run.hooks.named("on_step_end")]
    assert [{name: metrics[name] for name in written[0]} for metrics in given] == written


def test_the_batch_of_a_step_is_what_it_was_taken_on(grpo_run, sft_run):
    trained = [call.given["experience"] for call in grpo_run.hooks.named("on_batch_end")]
    batches = [call.given["batch"] for call in grpo_run.hooks.named("on_step_end")]
    assert all(batch.data is experience for batch, experience in zip(batches, trained, strict=True))
    assert {batch.loss_fn for batch in batches} == {"grpo"}
    assert {call.given["batch"].loss_fn for call in sft_run.hooks.named("on_step_end")} == {"cross_entropy"}


def test_a_step_without_data_has_no_batch(tmp_path):
    """DAPO leaves out groups whose samples all have one reward, as here after the first step."""
    heard, is_first = Heard(), [True]

    class FirstStep(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            is_first.clear()

    def reward(completions):
        return [float(place) if is_first else 1.0 for place in range(len(completions))]

    recipes.dapo(
        **{**DETACHED, "reward": {"workers": 0, "functions": reward}, "total_steps": 2, "max_staleness": 0},
        name="run", output_dir=tmp_path, callbacks=[FirstStep(), FromCallbackPage(heard)],
    )  # fmt: skip
    first, second = heard.named("on_step_end")
    assert isinstance(first.given["batch"], TrainingBatch)
    assert second.given["batch"] is None
    assert second.given["metrics"]["skipped"] == 1.0


class Derives(Callback):
    """Derives a metric, and follows the losses."""

    def __init__(self):
        self.losses = []

    def on_step_end(self, state, step_idx, batch, metrics):
        self.losses.append(metrics["loss"])
        print(f"{step_idx}: {metrics['loss']:.2f}")
        metrics["loss_per_token"] = metrics["loss"] / metrics["tokens"]


class Gradients(TrainerCallback):
    def __init__(self):
        self.norms = []

    def on_gradients_ready(self, gradients):
        self.norms.append(sum(float(gradient.norm()) ** 2 for gradient in gradients.values()) ** 0.5)


@pytest.fixture(scope="module")
def derived(tmp_path_factory):
    folder = tmp_path_factory.mktemp("derived")
    derives, gradients = Derives(), Gradients()
    heard = Heard()
    callbacks = [derives, gradients, FromCallbackPage(heard)]
    recipes.sft(**{**SFT, "eval": []}, name="run", output_dir=folder, callbacks=callbacks)
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return derives, gradients, heard, rows


def test_a_step_s_metrics_can_be_printed_and_plotted(tmp_path, capsys, derived):
    derives, *_ = derived
    assert len(derives.losses) == 6
    recipes.sft(**{**SFT, "eval": []}, name="run", output_dir=tmp_path, callbacks=[Derives()])
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("5: ")]


def test_a_metric_that_a_hook_derives_is_recorded_at_its_step(derived):
    *_, rows = derived
    own = {row["step"]: row["loss_per_token"] for row in rows if "loss_per_token" in row}
    steps = {row["step"]: row for row in rows if "loss" in row}
    assert own == {step: row["loss"] / row["tokens"] for step, row in steps.items()}


def test_gradients_can_be_debugged(derived):
    _, gradients, heard, _ = derived
    norms = [call.given["metrics"]["grad_norm"] for call in heard.named("on_step_end")]
    assert gradients.norms == pytest.approx(norms, rel=1e-5)


# -- checkpoints ---------------------------------------------------------------------------------------------------


def test_checkpoint_fires_once_for_each_when_its_row_is_in_the_manifest(grpo_run, sft_run, experiment):
    for heard, names in (
        (grpo_run.hooks, ["step_4", "step_8"]),
        (sft_run.hooks, ["step_3", "step_6"]),
        (experiment.hooks, ["step_2"] * 4),
    ):
        calls = heard.named("on_checkpoint")
        assert [call.given["row"].name for call in calls] == names
        assert all(call.on_disk["checkpoints"][-1] == call.given["row"].name for call in calls)


class Ships(Callback):
    """Copies each checkpoint, removes the one before, and scores the model that it holds."""

    def __init__(self, there):
        self.there, self.kept, self.parameters = there, [], []

    def on_checkpoint(self, state, row):
        from transformers import AutoModelForCausalLM

        shutil.copytree(row.state_path, self.there / row.name)
        if self.kept:
            state.checkpoint_mgr.remove(self.kept.pop())
        self.kept.append(row)
        model = AutoModelForCausalLM.from_pretrained(row.sampler_path)
        self.parameters.append(model.num_parameters())


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipped")
    ships = Ships(folder / "there")
    settings = {**SFT, "eval": [], "checkpoint": {"save_every": 2, "keep": 10}}
    recipes.sft(**settings, name="run", output_dir=folder, callbacks=[ships])
    return ships, folder / "run"


def test_a_checkpoint_can_be_shipped_from_the_hook(shipped):
    ships, _ = shipped
    assert sorted(path.name for path in ships.there.iterdir()) == ["step_2", "step_4", "step_6"]
    assert all(any(path.iterdir()) for path in ships.there.iterdir())


def test_old_checkpoints_can_be_pruned_in_the_hook(shipped):
    _, folder = shipped
    from proa import CheckpointManager

    assert [row.name for row in CheckpointManager(folder).rows] == ["step_6"]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_6"]


def test_the_model_of_a_checkpoint_can_be_evaluated_in_the_hook(shipped):
    ships, _ = shipped
    assert len(ships.parameters) == 3
    assert min(ships.parameters) > 0


# -- evals in the loop ---------------------------------------------------------------------------------------------


def test_eval_fires_for_each_evaluator_after_each_of_its_evals(experiment, sft_run, grpo_run):
    runs = 4
    assert [(call.given["eval_name"], call.given["step_idx"]) for call in experiment.hooks.named("on_eval")] == [
        ("held_out", 0), ("held_out", 1),
    ] * runs  # fmt: skip
    calls = [(call.given["step_idx"], call.given["eval_name"]) for call in sft_run.hooks.named("on_eval")]
    assert sorted(calls) == [(2, "held_out"), (2, "loss"), (5, "held_out"), (5, "loss")]
    assert [call.given["step_idx"] for call in grpo_run.hooks.named("on_eval")] == [3, 7]


def test_eval_follows_the_eval_itself(sft_run):
    assert [name for name in sft_run.events.names if name.startswith("eval")] == ["eval_start", "eval_end"] * 4
    for call in sft_run.hooks.named("on_eval"):
        scores = {f"{call.given['eval_name']}.{name}": score for name, score in call.given["metrics"].items()}
        assert scores.items() <= call.state.metrics.items()


class Curve(Callback):
    """Follows the curve of a score, and stops when it has seen enough."""

    def __init__(self):
        self.points = []

    def on_eval(self, state, step_idx, eval_name, metrics):
        self.points.append((eval_name, step_idx, metrics["eval_loss"]))
        if len(self.points) == 2:
            state.stop_training("seen enough")


@pytest.fixture(scope="module")
def curve(tmp_path_factory):
    loss = {"name": "loss", "kind": "loss", "count": 4, "run_every": 1, "baseline": False}
    points = Curve()
    state = recipes.sft(
        **{**SFT, "eval": [loss]}, name="run", output_dir=tmp_path_factory.mktemp("curve"), callbacks=[points]
    )
    return points, state


def test_scores_can_be_pushed_to_a_dashboard(curve):
    points, _ = curve
    assert [(name, step) for name, step, _ in points.points] == [("loss", 0), ("loss", 1)]


def test_an_eval_can_stop_training_early(curve):
    _, state = curve
    assert (state.global_step, state.stop_reason, state.stopped_by) == (2, "seen enough", "Curve.on_eval")


def test_benchmarks_in_the_loop_carry_their_predictions_too(experiment, grpo_run):
    for heard, steps in ((experiment.hooks, [0, 1] * 4), (grpo_run.hooks, [3, 7])):
        calls = [call for call in heard.named("on_benchmark_eval") if call.given["step"] is not None]
        assert [call.given["step"] for call in calls] == steps
        assert all(len(call.given["predictions"]) == 4 for call in calls)
        for call in calls:
            before = heard[heard.index(call) - 1]
            assert (before.hook, before.given["step_idx"]) == ("on_eval", call.given["step"])
            assert before.given["metrics"] == call.given["eval_result"].metrics


# -- experiments ---------------------------------------------------------------------------------------------------

RUNS = ["e_stage0__s7", "e_stage1__s7", "e_stage0__s8", "e_stage1__s8"]


def test_experiment_start_fires_once_before_any_run(experiment, repeats, grpo_run):
    for heard in (experiment.hooks, repeats.hooks, grpo_run.hooks):
        assert heard.place("on_experiment_start") == 0


def test_the_id_of_an_experiment_is_there_for_all_later_hooks(experiment, grpo_run):
    for heard in (experiment.hooks, grpo_run.hooks):
        assert {call.ids["experiment_id"] for call in heard if call.hook in HOOKS} == {"experiment 1"}


def test_group_start_fires_for_repeats_before_their_first_run(repeats):
    outer = [call for call in repeats.hooks if call.hook in ("on_group_start", "on_run_start")]
    assert [call.given.get("group_name", call.given["ctx"].run_key) for call in outer] == [
        "a", "a__s0", "a__s1", "b", "b__s0", "b__s1",
    ]  # fmt: skip


def test_group_start_fires_for_stages_before_their_first_run(experiment):
    outer = [call for call in experiment.hooks if call.hook in ("on_group_start", "on_run_start")]
    assert [call.given.get("group_name", call.given["ctx"].run_key) for call in outer] == [
        "e_stage0", RUNS[0], "e_stage1", *RUNS[1:],
    ]  # fmt: skip


def test_without_repeats_and_stages_there_is_no_group(grpo_run):
    assert "on_group_start" not in grpo_run.hooks.names
    assert {call.given["ctx"].group_name for call in grpo_run.hooks.named("on_run_start")} == {None}


def test_the_id_of_a_group_is_there_for_its_runs(experiment, repeats):
    for heard in (experiment.hooks, repeats.hooks):
        for call in heard.named("on_run_start", "on_run_end", "on_benchmark_eval"):
            group = call.given["ctx"].group_name
            assert call.ids[f"group:{group}"] == f"group {group}"


def test_run_start_fires_for_each_run_before_training(experiment, grpo_run):
    order = [call for call in experiment.hooks if call.hook in ("on_run_start", "on_train_start")]
    assert [call.hook for call in order] == ["on_run_start", "on_train_start"] * 4
    assert [call.given["ctx"].run_key for call in order[::2]] == RUNS
    assert [call.given["ctx"].run_key for call in grpo_run.hooks.named("on_run_start")] == ["rl"]


def test_the_configuration_of_a_run_is_there_when_it_starts(experiment, grpo_run):
    calls = [*experiment.hooks.named("on_run_start"), *grpo_run.hooks.named("on_run_start")]
    configs = [call.given["ctx"].run_config for call in calls]
    assert all(isinstance(config, RunConfig) for config in configs)
    assert [(config.name, config.seed) for config in configs] == [
        *((name, int(name[-1])) for name in RUNS), ("rl", 0),
    ]  # fmt: skip


def test_a_run_is_opened_below_its_experiment_and_group(experiment):
    for call in experiment.hooks.named("on_run_start"):
        group = call.given["ctx"].group_name
        assert call.ids.keys() >= {"experiment_id", f"group:{group}"}
        assert "run_id" not in call.ids  # of the run before


def test_the_id_of_a_run_is_there_for_its_later_hooks_and_results(experiment):
    for run, name in zip(_by_run(experiment.hooks), RUNS, strict=True):
        later = [call for call in run if call.hook not in ("on_run_start", "on_group_start", "on_experiment_end")]
        assert {call.ids["run_id"] for call in later} == {f"run {name}"}
        assert {call.hook for call in later if call.state} == set(list(HOOKS)[:5])
    assert [arm.run_id for arm in experiment.result.arms] == [f"run {name}" for name in RUNS]


def test_benchmarks_after_training_have_no_step(experiment):
    for run in _by_run(experiment.hooks):
        after = [call for call in run[run.place("on_train_end") :] if call.hook == "on_benchmark_eval"]
        assert [(call.given["eval_result"].name, call.given["step"]) for call in after] == [
            ("held_out", None), ("again", None),
        ]  # fmt: skip


def test_benchmarks_in_the_loop_have_the_step_that_was_trained(experiment):
    for run in _by_run(experiment.hooks):
        within = [call for call in run[: run.place("on_train_end")] if call.hook == "on_benchmark_eval"]
        assert [(call.given["eval_result"].name, call.given["step"]) for call in within] == [
            ("held_out", 0), ("held_out", 1),
        ]  # fmt: skip
        assert all(run[run.index(call) - 1].state.global_step == call.given["step"] + 1 for call in within)


def _by_run(heard):
    starts = [place for place, call in enumerate(heard) if call.hook == "on_run_start"]
    return [Heard(heard[start:end]) for start, end in zip(starts, [*starts[1:], len(heard)], strict=True)]


CARRIES = {
    "metrics": lambda result: result.metrics["exact"] >= 0.0,
    "breakdowns": lambda result: all(
        part.keys() == {"n", "mean_reward", "pass_rate"} for part in result.breakdowns["finish_reason"].values()
    ) and sum(part["n"] for part in result.breakdowns["finish_reason"].values()) == 4,
    "tags": lambda result: result.tags == ([] if result.name == "again" else ["short"]),
}  # fmt: skip


@pytest.mark.parametrize("part", CARRIES)
def test_a_benchmarks_result_carries(part, experiment):
    results = [call.given["eval_result"] for call in experiment.hooks.named("on_benchmark_eval")]
    assert len(results) == 4 * 4
    assert all(CARRIES[part](result) for result in results)


def test_predictions_are_rows_one_for_each_task(experiment):
    for call in experiment.hooks.named("on_benchmark_eval"):
        rows = call.given["predictions"]
        assert {type(row) for row in rows} == {dict}
        assert len({row["task_id"] for row in rows}) == len(rows) == 4
        assert all({"prompt", "completion"} <= row.keys() for row in rows)
        json.dumps(rows)  # they can be persisted


def test_a_benchmark_has_one_row_for_each_name_and_step(experiment):
    for run in _by_run(experiment.hooks):
        rows = [(call.given["eval_result"].name, call.given["step"]) for call in run.named("on_benchmark_eval")]
        assert len(rows) == len(set(rows)) == 4
        assert [(one.name, one.step) for one in run.named("on_run_end")[0].given["arm"].evals] == rows


def test_run_end_fires_for_each_run_after_its_evals(experiment):
    ends = experiment.hooks.named("on_run_end")
    assert [call.given["ctx"].run_key for call in ends] == RUNS
    for run in _by_run(experiment.hooks):
        last = {"on_run_end", "on_experiment_end", "on_group_start"}
        assert set(run.names[run.place("on_run_end") :]) <= last
        assert run.names[run.place("on_run_end") - 1] == "on_benchmark_eval"


def test_run_end_fires_before_the_run_is_marked_completed(experiment, grpo_run):
    for heard in (experiment.hooks, grpo_run.hooks):
        for call in heard.named("on_run_end"):
            assert call.on_disk["status"] != "completed"
            header = json.loads((call.given["ctx"].output_dir / "run.json").read_text())
            assert header["status"] == "completed"


def test_run_end_says_how_the_run_ended(experiment, failed_run):
    assert {call.given["run_result"].status for call in experiment.hooks.named("on_run_end")} == {"completed"}
    (end,) = failed_run.hooks.named("on_run_end")
    assert (end.given["run_result"].status, end.given["arm"].status) == ("failed", "failed")
    assert end.given["run_result"].error == "RuntimeError: out of luck"


def test_run_end_has_the_arm_with_its_scores(experiment):
    arms = [call.given["arm"] for call in experiment.hooks.named("on_run_end")]
    assert [arm.name for arm in arms] == RUNS
    assert all(arm.score("again.exact") == arm.eval("again").metrics["exact"] for arm in arms)


def test_experiment_end_fires_once_at_the_end(experiment, repeats, grpo_run, failed_run):
    for heard in (experiment.hooks, repeats.hooks, grpo_run.hooks, failed_run.hooks):
        assert heard.place("on_experiment_end") == len(heard) - 1


def test_experiment_end_has_the_result_for_a_summary(experiment):
    (end,) = experiment.hooks.named("on_experiment_end")
    result = end.given["result"]
    assert [arm.name for arm in result.arms] == RUNS
    assert (result.status, result.name, result.experiment_id) == ("completed", "e", "experiment 1")
    assert result.conclusion
    assert experiment.result.conclusion == result.conclusion
