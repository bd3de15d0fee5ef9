"""The documented surface, spelt out: a change of any name or order must change this file too."""

import dataclasses
import inspect
import typing

import pytest

import proa
from proa import Callback, ErrorPolicy, MakerCallback, Priority, TrainerCallback
from proa.lifecycle import EVENT_NAMES, MOMENTS, EveryMoment, Moments

PAYLOADS = {
    "train_start": "state",
    "train_end": "state artifacts",
    "episode_start": "state episode",
    "episode_end": "state episode",
    "epoch_start": "state epoch",
    "epoch_end": "state epoch",
    "step_start": "state",
    "gradients_ready": "state gradients",
    "step_end": "state step_idx batch metrics experience",
    "metrics_logged": "state step_idx metrics",
    "update_start": "state version",
    "update_end": "state version",
    "checkpoint_saved": "state row",
    "eval_start": "state step_idx eval_name",
    "eval_end": "state step_idx eval_name metrics",
    "error": "state exception",
    "wait_start": "state",
    "wait_end": "state seconds",
    "maker.loop_start": "state",
    "maker.loop_end": "state",
    "maker.batch_start": "state",
    "maker.batch_end": "state",
    "maker.make_experience_start": "state",
    "maker.trajectory_start": "state uid",
    "maker.turn_end": "state uid turn",
    "maker.trajectory_end": "state uid trajectory",
    "maker.make_experience_end": "state experience",
    "maker.send_start": "state",
    "maker.send_end": "state",
    "maker.weights_loaded": "state version",
    "maker.lost": "maker reason",
    "maker.recreated": "maker reason",
    "experiment_start": "ctx",
    "experiment_end": "ctx result",
    "group_start": "ctx group_name",
    "run_start": "ctx",
    "run_end": "ctx run_result arm",
    "benchmark_eval": "ctx eval_result predictions step",
}

HOOKS = {
    TrainerCallback: {
        "on_fit_start()": "train_start",
        "on_fit_end()": "train_end",
        "on_episode_start(episode)": "episode_start",
        "on_episode_end(episode)": "episode_end",
        "on_epoch_start(epoch)": "epoch_start",
        "on_epoch_end(epoch)": "epoch_end",
        "on_batch_start()": "step_start",
        "on_gradients_ready(gradients)": "gradients_ready",
        "on_batch_end(metrics, experience)": "step_end",
        "on_update_start()": "update_start",
        "on_update_end()": "update_end",
        "on_exception(exception)": "error",
        "on_wait_start()": "wait_start",
        "on_wait_end(seconds)": "wait_end",
    },
    MakerCallback: {
        "on_loop_start()": "maker.loop_start",
        "on_loop_end()": "maker.loop_end",
        "on_batch_start()": "maker.batch_start",
        "on_batch_end()": "maker.batch_end",
        "on_make_experience_start()": "maker.make_experience_start",
        "on_trajectory_start(uid)": "maker.trajectory_start",
        "on_turn_end(uid, turn)": "maker.turn_end",
        "on_trajectory_end(uid, trajectory)": "maker.trajectory_end",
        "on_make_experience_end(experience)": "maker.make_experience_end",
        "on_send_start()": "maker.send_start",
        "on_send_end()": "maker.send_end",
        "on_weights_loaded(version)": "maker.weights_loaded",
    },
    Callback: {
        "on_train_start(state)": "train_start",
        "on_train_end(state, artifacts)": "train_end",
        "on_step_end(state, step_idx, batch, metrics)": "step_end",
        "on_metrics(state, step_idx, metrics)": "metrics_logged",
        "on_checkpoint(state, row)": "checkpoint_saved",
        "on_eval(state, step_idx, eval_name, metrics)": "eval_end",
        "on_exception(state, exception)": "error",
        "on_experiment_start(ctx)": "experiment_start",
        "on_experiment_end(ctx, result)": "experiment_end",
        "on_group_start(ctx, group_name)": "group_start",
        "on_run_start(ctx)": "run_start",
        "on_run_end(ctx, run_result, arm)": "run_end",
        "on_benchmark_eval(ctx, eval_result, predictions, *, step)": "benchmark_eval",
    },
}

FIELDS = {
    "TrainState": "step epoch global_step num_epochs max_steps metrics should_stop",
    "LoopState": (
        "step epoch global_step num_epochs max_steps metrics should_stop num_steps episode output_dir "
        "checkpoint_mgr ctx rank world_size policy_version resumed_from"
    ),
    "Experience": "sequences action_log_probs values reward kl advantages attention_mask action_mask",
    "TrainingBatch": "data loss_fn loss_fn_config metrics",
    "ManifestRow": "name batch epoch state_path sampler_path final step policy_version metrics",
    "LoopArtifacts": (
        "run_dir manifest_path checkpoints total_requested_steps train_seconds steps_run stop_reason"
    ),
    "LogContext": "output_dir config run_key run_config group_name ids extras",
    "EvalResult": "name benchmark_id metrics breakdowns eval_seconds step tags",
    "RunResult": "run_id status metrics artifacts error extras",
    "ArmResult": (
        "name run_config status metrics eval_metrics eval_breakdowns evals run_id error train_seconds "
        "eval_seconds run_result group_id group_name"
    ),
    "ExperimentResult": "name status arms best_arm best_score conclusion experiment_id hypothesis",
}  # fmt: skip


def test_events_and_payloads_are_the_documented_ones_in_the_documented_order():
    assert {name: " ".join(moment.payload) for name, moment in MOMENTS.items()} == PAYLOADS


def test_the_literal_that_type_checkers_read_is_the_table():
    assert tuple(MOMENTS) == EVENT_NAMES


def test_the_ten_events_of_the_event_style_are_there():
    ten = "train_start train_end epoch_start epoch_end step_start step_end eval_start eval_end checkpoint_saved error"
    assert set(ten.split()) <= set(EVENT_NAMES)


@pytest.mark.parametrize("family", HOOKS, ids=lambda family: family.__name__)
def test_hooks_are_the_documented_views_of_moments(family):
    assert {str(hook): hook.moment.name for hook in family.hooks.values()} == HOOKS[family]


def test_the_step_of_a_benchmark_is_keyword_only_and_optional():
    step = inspect.signature(Callback.on_benchmark_eval).parameters["step"]
    assert (step.kind, step.default) == (step.KEYWORD_ONLY, None)


@pytest.mark.parametrize("name", FIELDS)
def test_data_has_the_documented_fields_first_and_in_order(name):
    fields = [f.name for f in dataclasses.fields(getattr(proa, name)) if f.init and not f.kw_only]
    documented = FIELDS[name].split()
    assert fields[: len(documented)] == documented


def test_defaults_of_the_train_state():
    state = proa.TrainState()
    assert [state.step, state.epoch, state.global_step, state.num_epochs, state.max_steps] == [0, 0, 0, 0, -1]
    assert state.metrics == {}
    assert state.should_stop is False


def test_bands_from_first_to_last():
    order = sorted(Priority, key=lambda band: -band)
    assert [band.name for band in order] == ["METRICS", "RECORD", "DEFAULT", "CONTROL", "CHECKPOINT", "LOGGING"]


def test_user_callbacks_raise_by_default():
    assert {family.error_policy for family in HOOKS} == {ErrorPolicy.RAISE}


def test_the_docs_hold_the_tables_of_moments_and_no_other(repository):
    from proa.lifecycle.table import markdown

    text = (repository / "docs" / "moments.md").read_text(encoding="utf-8")
    written = text.partition("| event |")[1:]
    assert "".join(written).partition("\n\n## The order")[0] == markdown()


@pytest.mark.parametrize("family", [*HOOKS, EveryMoment], ids=lambda family: family.__name__)
def test_every_hook_has_hints_that_resolve(family):
    for name in family.hooks or ["on_moment"]:
        hook = getattr(family, name)
        assert typing.get_type_hints(hook).keys() == {*list(inspect.signature(hook).parameters)[1:], "return"}


def test_moments_have_hints_that_resolve():
    for moment in MOMENTS.values():
        assert {*moment.payload, "return"} == typing.get_type_hints(getattr(Moments, moment.method)).keys()


@pytest.mark.parametrize("family", HOOKS, ids=lambda family: family.__name__)
def test_the_docstring_of_a_hook_is_its_moment_s(family):
    for name, hook in family.hooks.items():
        said = " ".join(inspect.getdoc(getattr(family, name)).split())
        assert said.startswith(hook.moment.doc)
        for item in (*hook.positional, *hook.keyword):
            assert f"{item}: {hook.moment.items[item]}" in said


class Mine(Callback):
    def on_eval(self, state, step_idx, eval_name, metrics): ...


def test_an_overridden_hook_has_the_docstring_too():
    assert "step_idx: the index of the step whose weights were scored" in inspect.getdoc(Mine.on_eval)
