"""The moments around a plain run: when they fire, what they carry, and what comes of hooks that fail there."""

import json
import os
import signal

import pytest
from tests.experiments.small_experiment import RUN, Listener
from tests.small import DETACHED

from proa import Callback, CallbackManager, ErrorPolicy, ExperimentConfig, LoopState, MakerCallback, TrainingBatch
from proa.callbacks.registry import register_callback
from proa.config import load_run_config
from proa.errors import ProaError
from proa.loop import SupervisedLoop
from proa.recipes import grpo, run

SFT = {**RUN, "eval": [], "checkpoint": {"save_every": 1}}
HEARD = ["experiment_start", "run_start mine", "train_start"]


def carry_out(tmp_path, *callbacks, **changes):
    return run(**{**SFT, "name": "mine", "output_dir": tmp_path, **changes}, callbacks=list(callbacks))


def header(tmp_path):
    return json.loads((tmp_path / "mine" / "run.json").read_text())


# -- what they carry -------------------------------------------------------------------------------


class Contexts(Callback):
    """Keeps the context of every hook, and what the last two carry."""

    def __init__(self):
        self.contexts = []
        self.folder_was_there = None

    def on_experiment_start(self, ctx):
        self.contexts.append(ctx)

    def on_run_start(self, ctx):
        self.contexts.append(ctx)
        self.folder_was_there = (ctx.output_dir / "run.json").exists()

    def on_train_start(self, state):
        self.contexts.append(state.ctx)

    def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
        self.contexts.append(ctx)

    def on_run_end(self, ctx, run_result, arm):
        self.contexts.append(ctx)
        self.run_result, self.arm = run_result, arm

    def on_experiment_end(self, ctx, result):
        self.contexts.append(ctx)
        self.result = result
        self.status = json.loads((ctx.output_dir / "run.json").read_text())["status"]


def test_one_context_says_what_an_experiments_would(tmp_path):
    seen = Contexts()
    carry_out(tmp_path, seen, eval=RUN["eval"], name="mine__s1")  # a name that no arm may have
    ctx = seen.contexts[0]
    assert len(seen.contexts) == 7
    assert all(one is ctx for one in seen.contexts)
    assert (ctx.run_key, ctx.run_config.name, ctx.group_name) == ("mine__s1", "mine__s1", None)
    assert ctx.extras == {"standalone": True, "resumed_from": None, "steps_done": 0}
    config = ctx.config
    assert isinstance(config, ExperimentConfig)
    assert (config.name, config.folder, config.output_dir) == ("mine__s1", tmp_path / "mine__s1", tmp_path)
    assert list(config.arms) == ["mine__s1"]
    assert config.run["total_steps"] == 2
    assert (config.metadata.tags, config.metadata.benchmark, config.n_repeats) == ([], [], 1)
    assert seen.folder_was_there


def test_the_results_are_filled_as_in_an_experiment(tmp_path):
    seen = Contexts()
    state = carry_out(tmp_path, seen, eval=RUN["eval"])
    run_result, arm, result = seen.run_result, seen.arm, seen.result
    assert (run_result.status, run_result.run_id, run_result.error) == ("completed", "mine", None)
    assert run_result.metrics["loss"] == state.metrics["loss"]
    assert (run_result.artifacts.steps_run, len(run_result.artifacts.checkpoints)) == (2, 2)
    assert (arm.name, arm.status, arm.run_result) == ("mine", "completed", run_result)
    assert [(one.name, one.step) for one in arm.evals] == [("held_out", 0), ("held_out", 1)]
    assert arm.score("held_out.exact") == state.metrics["held_out.exact"]
    assert arm.train_seconds > 0
    assert (result.name, result.status, result.arms) == ("mine", "completed", [arm])
    assert (result.experiment_id, result.best_arm, result.success_metric) == ("mine", "mine", "held_out.exact")
    assert result.conclusion
    assert seen.status == "completed"  # the header is written before experiment_end, as in an experiment


def test_a_kind_is_one_instance_for_all_of_them(tmp_path):
    made = []

    class Kept(Listener):
        def __init__(self):
            super().__init__()
            made.append(self)

    register_callback("kept_for_a_test", Kept)
    kinds = [{"kind": "kept_for_a_test"}]
    run(load_run_config(None, **{**SFT, "name": "mine", "output_dir": tmp_path, "callbacks": kinds}))
    (listener,) = made
    assert listener.heard == [*HEARD, "train_end", "run_end mine completed", "experiment_end completed"]


def test_moments_of_makers_are_within_the_run(tmp_path):
    manager, heard = CallbackManager(), []
    for event in ("run_start", "maker.loop_start", "maker.make_experience_end", "run_end"):
        manager.on(event)(lambda *, event=event: heard.append(event))
    settings = {**DETACHED, "total_steps": 2, "makers": 2}
    grpo(name="mine", output_dir=tmp_path, callbacks=manager, **settings)
    assert (heard[0], heard[-1]) == ("run_start", "run_end")
    assert heard.count("maker.loop_start") == 2


def test_a_loop_of_ones_own_fires_none_of_them():
    listener = Listener()
    SupervisedLoop(lambda batch: {"loss": 0.5}, callbacks=[Only(listener)]).fit(lambda epoch: [TrainingBatch(0)])
    assert listener.heard == []


class Only(Callback):
    """Hears the moments around a run, for another."""

    def __init__(self, listener):
        self._listener = listener

    def on_experiment_start(self, ctx):
        self._listener.on_experiment_start(ctx)

    def on_run_start(self, ctx):
        self._listener.on_run_start(ctx)


# -- runs that do not end well ---------------------------------------------------------------------


class NeverCalled(MakerCallback):
    def on_loop_start(self): ...


def test_what_is_refused_fires_nothing_and_leaves_no_folder(tmp_path):
    (tmp_path / "long.jsonl").write_text('{"prompt": "' + "1" * 40 + '", "answer": "1"}\n')  # for this model
    listener = Listener()
    for wrong in (
        {"model": {"path": str(tmp_path / "nowhere")}},
        {"task": str(tmp_path / "long.jsonl"), "model": {**SFT["model"]}, "tokenizer": _characters()},
    ):
        with pytest.raises(ProaError):
            carry_out(tmp_path, listener, **wrong)
    with pytest.raises(ProaError, match="no makers"):
        carry_out(tmp_path, listener, NeverCalled())
    assert listener.heard == []
    assert not (tmp_path / "mine").exists()
    carry_out(tmp_path)
    with pytest.raises(ProaError, match="already used"):
        carry_out(tmp_path, listener)
    carry_out(tmp_path, listener, resume="auto")  # it is complete
    assert listener.heard == []


def _characters():
    from proa.tasks.builtin.characters import tokenizer

    return tokenizer()


class Fails(Callback):
    """Raises at one hook."""

    def __init__(self, hook, error=LookupError):
        self.hook, self.error = hook, error

    def _now(self, hook):
        if hook == self.hook:
            raise self.error("the hook's own error")

    def on_experiment_start(self, ctx):
        self._now("experiment_start")

    def on_run_start(self, ctx):
        self._now("run_start")

    def on_step_end(self, state, step_idx, batch, metrics):
        self._now("step_end")

    def on_run_end(self, ctx, run_result, arm):
        self._now("run_end")

    def on_experiment_end(self, ctx, result):
        self._now("experiment_end")


@pytest.mark.parametrize(("error", "status"), [(LookupError, "failed"), (KeyboardInterrupt, "cancelled")])
def test_a_run_that_fails_or_is_interrupted_has_its_ends(tmp_path, error, status):
    listener = Listener()
    with pytest.raises(error):
        carry_out(tmp_path, listener, Fails("step_end", error))
    assert listener.heard == [*HEARD, "train_end", f"run_end mine {status}", f"experiment_end {status}"]
    assert listener.arms["mine"].error == f"{error.__name__}: the hook's own error"
    assert "test_run_moments" in listener.arms["mine"].run_result.extras["traceback"]
    assert header(tmp_path)["status"] == status


@pytest.mark.parametrize(("error", "status"), [(MemoryError, "failed"), (KeyboardInterrupt, "cancelled")])
def test_a_run_that_ends_before_training_without_being_refused_has_its_moments_too(
    tmp_path, monkeypatch, error, status
):
    def fail(*_, **__):
        raise error("too early")

    monkeypatch.setattr("proa.run.supervised.Optimizer", fail)
    listener = Listener()
    with pytest.raises(error):
        carry_out(tmp_path, listener)
    assert listener.heard == [
        "experiment_start", "run_start mine", f"run_end mine {status}", f"experiment_end {status}",
    ]  # fmt: skip
    assert (header(tmp_path)["status"], listener.arms["mine"].error) == (status, f"{error.__name__}: too early")


ENDS = ["run_end mine failed", "experiment_end failed"]


@pytest.mark.parametrize(
    ("hook", "heard", "status"),
    [
        ("experiment_start", ["experiment_start", "experiment_end failed"], "failed"),
        ("run_start", ["experiment_start", "run_start mine", *ENDS], "failed"),
        ("run_end", [*HEARD, "train_end", "run_end mine completed", "experiment_end failed"], "failed"),
        ("experiment_end", [*HEARD, "train_end", "run_end mine completed", "experiment_end completed"], "completed"),
    ],
)
def test_a_hook_that_fails_ends_the_run_with_its_error_and_everybody_hears_the_ends(tmp_path, hook, heard, status):
    listener = Listener()
    with pytest.raises(LookupError, match="own error"):
        carry_out(tmp_path, listener, Fails(hook))
    assert listener.heard == heard
    assert header(tmp_path)["status"] == status
    assert header(tmp_path)["callback_errors"] == {"Fails": 1}
    carry_out(tmp_path, resume="auto")
    assert header(tmp_path)["status"] == "completed"


@pytest.mark.parametrize("hook", ["run_end", "experiment_end"])
def test_a_hook_that_fails_at_the_end_does_not_replace_the_error_of_the_run(tmp_path, hook):
    with pytest.raises(ValueError, match="own error") as raised:
        carry_out(tmp_path, Fails("step_end", ValueError), Fails(hook))
    assert "also failed: LookupError: the hook's own error" in "".join(raised.value.__notes__)


class Tolerated(Fails):
    error_policy = ErrorPolicy.LOG


@pytest.mark.parametrize("hook", ["experiment_start", "run_start", "run_end", "experiment_end"])
def test_a_failure_that_is_tolerated_is_counted_wherever_it_happens(tmp_path, hook):
    carry_out(tmp_path, Tolerated(hook))
    assert header(tmp_path)["callback_errors"] == {"Tolerated": 1}


def test_what_was_opened_last_is_closed_first(tmp_path):
    heard = []

    class Named(Callback):
        def __init__(self, name):
            self.name = name

        def on_run_start(self, ctx):
            heard.append(f"{self.name} opens")

        def on_run_end(self, ctx, run_result, arm):
            heard.append(f"{self.name} closes")

        def on_experiment_end(self, ctx, result):
            heard.append(f"{self.name} ends")

    carry_out(tmp_path, Named("a"), Named("b"))
    assert heard == ["a opens", "b opens", "b closes", "a closes", "b ends", "a ends"]


def test_a_signal_at_run_start_is_answered_before_training(tmp_path):
    class Signals(Callback):
        def on_run_start(self, ctx):
            os.kill(os.getpid(), signal.SIGTERM)

    listener = Listener()
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        carry_out(tmp_path, listener, Signals())
    assert listener.heard == [
        "experiment_start", "run_start mine", "run_end mine cancelled", "experiment_end cancelled",
    ]  # fmt: skip


# -- resuming --------------------------------------------------------------------------------------


class Counting(Callback):
    """Has saved state, and says what of it there is at `run_start`."""

    def __init__(self):
        self.steps = 0
        self.at_start = None

    def on_run_start(self, ctx):
        self.at_start = (self.steps, ctx.extras["resumed_from"], ctx.extras["steps_done"])

    def on_step_end(self, state, step_idx, batch, metrics):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, saved):
        self.steps = saved["steps"]


class StopsOnce(Callback):
    def on_checkpoint(self, state: LoopState, row):
        if row.step == 1 and state.resumed_from is None:
            raise KeyboardInterrupt


@pytest.mark.parametrize("algorithm", ["sft", "grpo"])
def test_a_resumed_run_has_its_saved_state_and_knows_its_steps_at_run_start(tmp_path, algorithm):
    settings = {} if algorithm == "sft" else {**DETACHED, "total_steps": 2, "algorithm": "grpo"}
    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path, counting := Counting(), StopsOnce(), **settings)
    assert counting.at_start == (0, None, 0)
    carry_out(tmp_path, counting := Counting(), resume="auto", **settings)
    assert (counting.at_start, counting.steps) == ((1, "step_1", 1), 2)


def test_a_manager_serves_one_run_after_the_other_and_is_left_as_it_was(tmp_path):
    manager, listener = CallbackManager(), Listener()
    manager.add(listener)
    for name in ("mine", "other"):
        run(**{**SFT, "name": name, "output_dir": tmp_path}, callbacks=manager)
    assert [line for line in listener.heard if line.startswith("run_")] == [
        "run_start mine", "run_end mine completed", "run_start other", "run_end other completed",
    ]  # fmt: skip
    assert manager.callbacks == [listener]
    assert manager.enclosing_run is None
