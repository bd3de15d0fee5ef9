"""xaytune's page about `TrainState`, `CallbackManager` and its ten events, statement by statement."""

import dataclasses
import inspect
import typing
from typing import Any

import pytest
from tests.ancestors.listeners import EVENTS, Heard, event_functions
from tests.ancestors.runs import SFT
from tests.ancestors.test_one_logger import PAIRED
from tests.small import DETACHED

import proa
from proa import CallbackManager, LoopState, TrainingBatch, TrainState, recipes
from proa.loop import SupervisedLoop

# -- the state -----------------------------------------------------------------------------------------------------

FIELDS = {
    "step": (int, 0),
    "epoch": (int, 0),
    "global_step": (int, 0),
    "num_epochs": (int, 0),
    "max_steps": (int, -1),
    "metrics": (dict[str, Any], {}),
    "should_stop": (bool, False),
}


def test_it_is_a_dataclass_that_can_be_changed():
    assert dataclasses.is_dataclass(TrainState)
    state = TrainState()
    state.step = 3
    assert state.step == 3


@pytest.mark.parametrize("name", FIELDS)
def test_the_type_and_default_of_a_field(name):
    kind, default = FIELDS[name]
    assert typing.get_type_hints(TrainState)[name] == kind
    assert getattr(TrainState(), name) == default
    assert type(getattr(TrainState(), name)) is type(default)


def test_its_fields_can_be_given_in_the_documented_order():
    positional = [field.name for field in dataclasses.fields(TrainState) if field.init and not field.kw_only]
    assert positional == list(FIELDS)
    state = TrainState(1, 2, 3, 4, 5, {"loss": 6.0}, True)
    assert [getattr(state, name) for name in FIELDS] == [1, 2, 3, 4, 5, {"loss": 6.0}, True]


def test_each_state_has_metrics_of_its_own():
    TrainState().metrics["loss"] = 1.0
    assert TrainState().metrics == {}


def test_state_and_manager_are_imported_from_one_place():
    assert {"TrainState", "CallbackManager"} <= set(proa.__all__)


def test_every_callback_is_given_the_state_of_the_run(sft_run, grpo_run):
    for run in (sft_run, grpo_run):
        assert run.events
        assert all(call.given["state"] is run.state for call in run.events)
        assert isinstance(run.state, TrainState)


RECIPES = {
    "sft": {**SFT, "eval": [], "total_steps": 1},
    "dpo": {**PAIRED, "total_steps": 1},
    "reward_model": {**PAIRED, "total_steps": 1},
    "ppo": {**DETACHED, "total_steps": 1},
    "grpo": {**DETACHED, "total_steps": 1},
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_returns_the_state(recipe, tmp_path):
    heard = Heard()
    state = getattr(recipes, recipe)(
        **RECIPES[recipe], name="run", output_dir=tmp_path, callbacks=event_functions(heard, "train_end")
    )
    assert isinstance(state, TrainState)
    assert [call.given["state"] for call in heard] == [state]
    assert state.global_step >= 1


def at(event, run, name):
    return [getattr(call.state, name) for call in run.events.named(event)]


def test_step_counts_within_the_epoch(sft_run, grpo_run):
    assert at("step_end", sft_run, "step") == [1, 2, 3, 1, 2, 3]
    assert at("step_end", grpo_run, "step") == [1, 2] * 4


def test_epoch_is_the_number_of_the_current_one(sft_run, grpo_run):
    assert at("step_end", sft_run, "epoch") == [0, 0, 0, 1, 1, 1]
    assert at("step_end", grpo_run, "epoch") == [0, 0, 1, 1] * 2


def test_global_step_counts_optimizer_steps_over_all_epochs(sft_run, grpo_run):
    assert at("step_end", sft_run, "global_step") == [1, 2, 3, 4, 5, 6]  # of several micro-batches each
    assert at("step_end", grpo_run, "global_step") == list(range(1, 9))


def test_num_epochs_is_how_many_there_are(sft_run):
    assert {call.state.num_epochs for call in sft_run.events} == {2}
    assert len(sft_run.events.named("epoch_end")) == 2


def test_max_steps_is_the_limit_and_without_one_it_is_minus_1(sft_run):
    assert {call.state.max_steps for call in sft_run.events} == {6}
    loop = SupervisedLoop(lambda batch: {"loss": 1.0})
    assert (loop.fit(batches, num_epochs=2).max_steps, loop.state.global_step) == (-1, 6)
    assert (loop.fit(batches, num_epochs=2, max_steps=4).max_steps, loop.state.global_step) == (4, 4)


def batches(epoch):
    return [TrainingBatch(number) for number in range(3)]


@pytest.mark.parametrize("name", ["loss", "eval_loss", "learning_rate", "grad_norm"])
def test_metrics_hold_the_latest(name, sft_run):
    states = [call.state for call in sft_run.events.named("step_end")]
    if name == "eval_loss":  # known after the eval, which follows the third step
        assert [name in state.metrics for state in states] == [False, False, False, True, True, True]
        assert sft_run.state.metrics[name] == sft_run.state.metrics["loss.eval_loss"]
    else:
        rows = [call.given["metrics"] for call in sft_run.hooks.named("on_step_end")]
        assert [state.metrics[name] for state in states] == [row[name] for row in rows]


# -- stopping ------------------------------------------------------------------------------------------------------

STOPS = ["train_start", "epoch_start", "step_start", "step_end", "eval_start", "eval_end", "checkpoint_saved"]


@pytest.mark.parametrize("event", STOPS)
def test_stop_training_ends_it_after_the_current_step_from(event, tmp_path):
    """The third step: by then, each of these events has fired once within it or before it."""
    manager, steps = CallbackManager(), []

    @manager.on(event)
    def stop(state):
        if state.global_step >= 2 or event in ("train_start", "epoch_start"):
            state.stop_training()

    manager.on("step_end")(lambda state: steps.append(state.global_step))
    loss = {"name": "loss", "kind": "loss", "count": 4, "run_every": 1, "baseline": False}
    state = recipes.sft(
        **{**SFT, "eval": [loss]}, checkpoint={"save_every": 1}, name="run", output_dir=tmp_path, callbacks=manager
    )
    assert state.should_stop
    assert steps == {"train_start": [], "epoch_start": [1], "step_start": [1, 2, 3]}.get(event, [1, 2])


def test_setting_should_stop_ends_it_too(tmp_path):
    manager = CallbackManager()

    @manager.on("step_end")
    def stop(state):
        state.should_stop = True

    state = recipes.sft(**{**SFT, "eval": []}, name="run", output_dir=tmp_path, callbacks=manager)
    assert (state.global_step, state.should_stop) == (1, True)


def test_what_is_due_after_the_last_step_is_still_done(tmp_path):
    heard = Heard()
    manager = event_functions(heard)
    manager.on("step_end")(lambda state: state.stop_training())
    loss = {"name": "loss", "kind": "loss", "count": 4, "run_every": 1, "baseline": False}
    recipes.sft(
        **{**SFT, "eval": [loss]}, checkpoint={"save_every": 1}, name="run", output_dir=tmp_path, callbacks=manager
    )
    ends = ["eval_start", "eval_end", "checkpoint_saved", "epoch_end", "train_end"]
    assert heard.names == ["train_start", "epoch_start", "step_start", "step_end", *ends]


# -- the manager ---------------------------------------------------------------------------------------------------


def test_it_is_made_without_arguments():
    assert CallbackManager().callbacks == []


def test_on_registers_a_function_and_leaves_it_as_it_is():
    manager, heard = CallbackManager(), []

    def listen(state):
        heard.append(state)

    assert manager.on("step_end")(listen) is listen
    manager.fire("step_end", state := TrainState())
    assert heard == [state]


def test_fire_calls_every_function_of_the_event_and_no_other():
    manager, heard = CallbackManager(), []
    for event in EVENTS:
        for number in (1, 2):
            manager.on(event)(lambda state, event=event, number=number: heard.append((event, number)))
    for event in EVENTS:
        heard.clear()
        manager.fire(event, TrainState())
        assert sorted(heard) == [(event, 1), (event, 2)]


def test_it_fires_for_a_loop_of_ones_own_that_keeps_a_state():
    manager, seen = CallbackManager(), []
    manager.on("step_end")(lambda state, step_idx, metrics: seen.append((state.global_step, step_idx, metrics)))
    state = TrainState()
    for done in (1, 2):
        state.global_step, state.metrics = done, {"loss": 1 / done}
        manager.fire("step_end", state)
    assert seen == [(1, 0, {"loss": 1.0}), (2, 1, {"loss": 0.5})]


# -- the ten events ------------------------------------------------------------------------------------------------


def test_training_fires_them_itself(sft_run, grpo_run, failed_run):
    fired = {*sft_run.events.names, *failed_run.events.names}
    assert fired == set(EVENTS)
    assert set(grpo_run.events.names) == set(EVENTS) - {"error"}


def order(run, *events):
    return [name for name in run.events.names if name in events]


WHEN = {
    "train_start": lambda run: run.events.place("train_start") == 0,
    "train_end": lambda run: run.events.place("train_end") == len(run.events) - 1,
    "epoch_start": lambda run: order(run, "epoch_start", "step_start")[0] == "epoch_start"
    and at("epoch_start", run, "epoch") in ([0, 1], [0, 1] * 2)
    and set(at("epoch_start", run, "step")) == {0},
    "epoch_end": lambda run: order(run, "epoch_start", "epoch_end") == ["epoch_start", "epoch_end"] * len(
        run.events.named("epoch_end")
    )
    and len(set(at("epoch_end", run, "step"))) == 1 and at("epoch_end", run, "step")[0] > 1,
    "step_start": lambda run: at("step_start", run, "global_step") == list(range(run.state.global_step)),
    "step_end": lambda run: order(run, "step_start", "step_end") == ["step_start", "step_end"] * run.state.global_step
    and at("step_end", run, "global_step") == list(range(1, run.state.global_step + 1)),
    "eval_start": lambda run: order(run, "eval_start", "eval_end")[0] == "eval_start",
    "eval_end": lambda run: order(run, "eval_start", "eval_end") == ["eval_start", "eval_end"] * len(
        run.hooks.named("on_eval")
    ),
    "checkpoint_saved": lambda run: at("checkpoint_saved", run, "global_step")
    == [call.given["row"].step for call in run.hooks.named("on_checkpoint")]
    and all("checkpoints" in call.given["row"].state_path for call in run.hooks.named("on_checkpoint")),
}  # fmt: skip


@pytest.mark.parametrize("event", WHEN)
def test_when_it_fires(event, sft_run, grpo_run):
    for run in (sft_run, grpo_run):
        assert run.events.named(event)
        assert WHEN[event](run)


def test_error_fires_once_when_training_fails(failed_run, sft_run, grpo_run):
    assert failed_run.events.names[-3:] == ["epoch_end", "error", "train_end"]
    (error,) = failed_run.events.named("error")
    assert error.state.metrics["error"] == "RuntimeError: out of luck"
    assert "error" not in sft_run.events.names + grpo_run.events.names


def test_an_interrupt_is_no_error():
    heard = Heard()

    def step(batch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SupervisedLoop(step, callbacks=event_functions(heard)).fit(batches)
    assert heard.names == ["train_start", "epoch_start", "step_start", "step_end", "epoch_end", "train_end"]


def test_any_code_may_be_run_at_an_event(tmp_path):
    manager = CallbackManager()
    (tmp_path / "notes").mkdir()

    @manager.on("epoch_end")
    def notify(state):
        (tmp_path / "notes" / f"epoch_{state.epoch}").write_text(str(state.global_step))

    @manager.on("step_end")
    def own_metric(state):
        state.log("distance", 6 - state.global_step)

    state = recipes.sft(**{**SFT, "eval": []}, name="run", output_dir=tmp_path, callbacks=manager)
    assert sorted(path.name for path in (tmp_path / "notes").iterdir()) == ["epoch_0", "epoch_1"]
    assert state.metrics["distance"] == 0
    assert '"distance": 5' in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_state_of_a_run_is_a_train_state():
    assert issubclass(LoopState, TrainState)
    assert list(inspect.signature(LoopState).parameters)[: len(FIELDS)] == list(FIELDS)
