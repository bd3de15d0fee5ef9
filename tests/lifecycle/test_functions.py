"""Lists that mix managers, callbacks, factories and plain functions."""

import functools

import pytest
from tests.experiments.small_experiment import RUN
from tests.run.test_failed_rewards import SMALL

from proa import Callback, CallbackManager, Experiment, MakerCallback, TrainerCallback, TrainState
from proa.errors import HookError
from proa.lifecycle import Role
from proa.recipes import grpo, sft

SUPERVISED = {key: value for key, value in RUN.items() if key not in ("algorithm", "eval")}


def step(manager, done=1):
    manager.fire("step_end", TrainState(global_step=done, metrics={"loss": 0.5}))


@pytest.mark.parametrize("name", ["on_step_end", "step_end"])
def test_a_functions_name_is_its_event_and_its_parameters_are_items(name):
    heard = []

    def function(step_idx, metrics):
        heard.append((step_idx, metrics["loss"]))

    function.__name__ = name
    step(CallbackManager.create([function]))
    assert heard == [(0, 0.5)]


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("on_fit_start", "train_start"),
        ("on_checkpoint", "checkpoint_saved"),
        ("on_eval_start", "eval_start"),
        ("maker_batch_end", "maker.batch_end"),
        ("on_send_end", "maker.send_end"),
        ("on_maker_lost", "maker.lost"),
        ("on_exception", "error"),
    ],
)
def test_names_of_hooks_and_events_are_understood(name, event, capsys):
    def function():
        pass

    function.__name__ = name
    assert CallbackManager.create([function]).explain(event) == [name]


def test_a_method_and_a_partial_function_listen_too():
    heard = []

    class Tracker:
        def on_step_end(self, state):
            heard.append(state.global_step)

    def step_end(state, word):
        heard.append(word)

    step(CallbackManager.create([Tracker().on_step_end, functools.partial(step_end, word="hello")]))
    assert heard == [1, "hello"]


def test_a_class_and_a_function_without_parameters_stay_factories():
    class Listens(Callback):
        def on_train_start(self, state):
            pass

    def make():
        return Listens()

    manager = CallbackManager.create([Listens, make, functools.partial(Listens)])
    assert [type(one) for one in manager.callbacks] == [Listens] * 3


def refused(function, role=Role.RUN):
    with pytest.raises(HookError) as error:
        CallbackManager.create([function], role=role)
    return str(error.value)


def test_a_function_whose_event_nobody_can_tell_is_refused_with_what_to_write():
    def log_loss(state):
        pass

    def step_ned(state):
        pass

    def on_batch_end(state):
        pass

    assert "log_loss in callbacks= does not say which event it listens to: name it after one" in refused(log_loss)
    assert "manager.on('step_end')(log_loss)" in refused(log_loss)
    assert "did you mean 'step_end'?" in refused(step_ned)
    assert "name it step_end or maker_batch_end" in refused(on_batch_end)
    assert "a lambda in callbacks= does not say which event" in refused(lambda state: None)
    assert "does not say which event" in refused([].append)


def test_a_function_with_a_wrong_parameter_or_in_the_wrong_actor_is_refused():
    def step_end(state, metric):
        pass

    def maker_batch_end(state):
        pass

    async def on_step_end(state):
        pass

    assert "did you mean 'metrics'?" in refused(step_end)
    assert "never fires in a trainer" in refused(maker_batch_end, Role.TRAINER)
    assert "async def" in refused(on_step_end)


def test_further_managers_are_merged_into_the_first_in_order():
    heard = []
    first, second = CallbackManager(), CallbackManager()
    first.on("step_end")(lambda state: heard.append("first"))
    second.on("step_end", every=2)(lambda state: heard.append("second"))

    def step_end(state):
        heard.append("function")

    manager = CallbackManager.create([first, step_end, second])
    step(manager, 1)
    step(manager, 2)
    assert manager is first
    assert heard == ["first", "function", "first", "function", "second"]


class Heard(TrainerCallback):
    def __init__(self, heard):
        self.heard = heard

    def on_batch_end(self, metrics, experience):
        self.heard.append("trainer callback")


class InMakers(MakerCallback):
    per_maker = True

    def __init__(self):
        self.batches = 0

    def on_batch_end(self):
        self.batches += 1


def mixture(heard):
    """Two managers, an instance and functions."""
    first, second = CallbackManager(), CallbackManager()
    first.on("step_end")(lambda state: heard.append("first"))
    second.on("step_end", every=2)(lambda state: heard.append("second"))

    def on_step_end(step_idx):
        heard.append(f"function {step_idx}")

    def run_end(ctx):
        heard.append(f"end of {ctx.run_key}")

    return [first, Heard(heard), second, on_step_end, run_end]


IN_A_RUN = ["first", "trainer callback", "function 0", "first", "trainer callback", "second", "function 1"]


def test_a_recipe_takes_any_mixture_and_leaves_the_managers_as_they_were(tmp_path, capsys):
    heard = []
    given = mixture(heard)
    sft(name="mixed", output_dir=tmp_path, callbacks=given, **SUPERVISED)
    assert heard == [*IN_A_RUN, "end of mixed"]
    assert [len(one.explain("step_end")) for one in (given[0], given[2])] == [1, 1]
    assert given[0].callbacks == []


def test_a_detached_recipe_takes_makers_callbacks_in_the_mixture_too(tmp_path):
    heard, in_makers = [], InMakers()

    def maker_batch_end(state):
        heard.append("lease")

    one_prompt_a_lease = 2 * SMALL["train_batch_size"] // SMALL["sampling"]["group_size"]
    given = [*mixture(heard), in_makers, InMakers, maker_batch_end]
    grpo(**{**SMALL, "name": "mixed", "output_dir": tmp_path, "total_steps": 2}, callbacks=given)
    assert [one for one in heard if one != "lease"] == [*IN_A_RUN, "end of mixed"]
    assert heard.count("lease") == one_prompt_a_lease == in_makers.actor_copies["maker_0"].batches


def test_a_function_that_the_manager_has_too_stays_there_after_the_run(tmp_path, capsys):
    heard, manager = [], CallbackManager()

    @manager.on("step_end")
    def train_end(state):
        heard.append(state.global_step)

    sft(name="both", output_dir=tmp_path, callbacks=[manager, train_end], **SUPERVISED)
    assert heard == [1, 2, 2]
    assert manager.explain("step_end") == ["train_end"]
    assert manager.explain("train_end") == []


def test_an_experiment_takes_any_mixture(tmp_path):
    heard = []

    def experiment_end(result):
        heard.append(f"experiment {result.status}")

    config = {"name": "e", "output_dir": str(tmp_path), "run": {**RUN, "eval": []}, "n_repeats": 2}
    Experiment(config, [*mixture(heard), experiment_end]).run()
    one = [*IN_A_RUN, "end of e__s0"]
    assert heard == [*one, *IN_A_RUN, "end of e__s1", "experiment completed"]


def test_an_experiment_refuses_an_unclear_function_when_it_is_made(tmp_path):
    config = {"name": "e", "output_dir": str(tmp_path), "run": RUN}
    with pytest.raises(HookError, match="does not say which event"):
        Experiment(config, [lambda state: None])
