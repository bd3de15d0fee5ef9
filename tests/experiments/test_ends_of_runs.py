"""How runs of an experiment end when something is wrong: with them, with a hook, with a score, or by a signal."""

import json
import os
import shutil
import signal
import uuid

import pytest
from tests.experiments.small_experiment import BENCHMARK, JUDGED, RUN, Listener, of_a_run

from proa import Callback, CallbackManager
from proa.config import ConfigError
from proa.errors import ProaError
from proa.experiments import Experiment
from proa.experiments.plan import plan
from proa.experiments.saved_result import load_arm
from proa.recipes import run as run_recipe
from proa.record.run_folder import RunFolderError

TWO = {"name": "e", "runs": {"a": RUN, "b": RUN}, **JUDGED}
WRONG = {**RUN, "model": {"path": "nowhere"}}


def experiment(tmp_path, callbacks=(), **changes):
    return Experiment(TWO | {"output_dir": str(tmp_path)} | changes, callbacks)


def header(tmp_path):
    return json.loads((tmp_path / "e" / "experiment.json").read_text())


def came_to(tmp_path):
    """What an experiment came to, without times."""
    digests = {
        path.parent.name: json.loads(path.read_text())["weights_digest"] for path in tmp_path.glob("e/*/run.json")
    }
    told = header(tmp_path)
    return digests, told["conclusion"], [(arm["name"], arm["status"], arm["eval_metrics"]) for arm in told["arms"]]


# -- signals ---------------------------------------------------------------------------------------


class Signals(Callback):
    """Sends this process a signal at one moment, once."""

    def __init__(self, moment, number):
        self.moment, self.number = moment, number

    def _now(self, moment):
        if moment == self.moment:
            self.moment = ""
            os.kill(os.getpid(), self.number)

    def on_group_start(self, ctx, group_name):
        self._now(f"group_start {group_name}")

    def on_run_start(self, ctx):
        self._now(f"run_start {ctx.run_key}")

    def on_train_end(self, state, artifacts):
        self._now(f"train_end {state.ctx.run_key}")

    def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
        self._now(f"benchmark {ctx.run_key} {step}")

    def on_run_end(self, ctx, run_result, arm):
        self._now(f"run_end {ctx.run_key}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    experiment(folder).run()
    return came_to(folder)


MOMENTS = [
    ("run_start a", "cancelled", False),
    ("train_end a", "cancelled", False),
    ("benchmark a None", "cancelled", False),
    ("run_end a", "completed", False),
    ("run_start b", "completed", True),
]


@pytest.mark.parametrize(("moment", "a_ends", "b_begins"), MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.prove)])
def test_a_signal_is_answered_whenever_it_comes_and_nothing_is_lost(
    tmp_path, undisturbed, moment, a_ends, b_begins, number
):
    listener = Listener()
    with pytest.raises(KeyboardInterrupt, match=number.name):
        experiment(tmp_path, [listener, Signals(moment, number)]).run()
    assert f"run_end a {a_ends}" in listener.heard
    assert ("run_start b" in listener.heard) == b_begins
    assert "train_start" not in listener.heard[listener.heard.index(f"run_end a {a_ends}") :]
    assert ("benchmark_eval after None 4" in listener.heard) == (moment not in ("run_start a", "train_end a"))
    assert listener.heard[-1] == "experiment_end cancelled"
    assert header(tmp_path)["status"] == "cancelled"
    experiment(tmp_path).run()
    assert came_to(tmp_path) == undisturbed


def test_a_signal_at_the_end_of_the_last_run_is_answered_too(tmp_path, undisturbed):
    listener = Listener()
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        experiment(tmp_path, [listener, Signals("run_end b", signal.SIGTERM)]).run()
    assert listener.heard[-2:] == ["run_end b completed", "experiment_end cancelled"]
    experiment(tmp_path).run()
    assert came_to(tmp_path) == undisturbed


# -- hooks that fail -------------------------------------------------------------------------------


class Fails(Callback):
    """Raises at one hook."""

    def __init__(self, hook, *runs):
        self.hook, self.runs = hook, runs

    def on_run_end(self, ctx, run_result, arm):
        if self.hook == "run_end" and ctx.run_key in self.runs:
            raise LookupError("the hook's own error")

    def on_experiment_end(self, ctx, result):
        if self.hook == "experiment_end":
            raise LookupError("the hook's own error")


def test_a_hook_that_fails_at_the_end_of_a_failed_run_changes_neither_its_error_nor_the_next_run(tmp_path):
    result = experiment(tmp_path, [Fails("run_end", "a")], runs={"a": WRONG, "b": RUN}).run()
    a, b = result.arms
    assert (a.status, b.status) == ("failed", "completed")
    assert "nowhere" in a.error
    assert "hook's own" not in a.error


def test_a_hook_that_fails_at_the_end_of_a_good_run_fails_it_once_and_it_is_gone_on_with(tmp_path):
    listener = Listener()
    result = experiment(tmp_path, [listener, Fails("run_end", "a")]).run()
    assert [arm.status for arm in result.arms] == ["failed", "completed"]
    assert "hook's own" in result.arms[0].error
    assert [line for line in listener.heard if line.startswith("run_end a")] == ["run_end a completed"]
    assert [arm.status for arm in experiment(tmp_path).run().arms] == ["completed", "completed"]


def test_an_interrupt_stays_one_when_hooks_fail_on_top_of_it(tmp_path):
    callbacks = [Signals("train_end a", signal.SIGINT), Fails("run_end", "a")]
    with pytest.raises(KeyboardInterrupt):
        experiment(tmp_path, callbacks).run()
    assert header(tmp_path)["status"] == "cancelled"
    with pytest.raises(KeyboardInterrupt) as raised:
        experiment(tmp_path, [Signals("run_start a", signal.SIGINT), Fails("experiment_end")]).run()
    assert "hook's own error" in raised.value.__notes__[0]
    assert header(tmp_path)["status"] == "cancelled"


def test_the_end_is_written_though_a_hook_of_it_fails(tmp_path):
    with pytest.raises(LookupError):
        experiment(tmp_path, [Fails("experiment_end")]).run()
    assert header(tmp_path)["status"] == "completed"


class Hears(Callback):
    def __init__(self, heard):
        self.heard = heard

    def on_experiment_end(self, ctx, result):
        self.heard.append(result.status)


def test_every_manager_hears_of_the_end_also_when_a_function_of_one_fails(tmp_path):
    manager = CallbackManager()

    @manager.on("experiment_end")
    def fail(ctx):
        raise LookupError

    heard = []
    one = experiment(tmp_path, manager)
    one._build_managers = lambda: [manager, CallbackManager([Hears(heard)])]
    with pytest.raises(LookupError):
        one.run()
    assert heard == ["completed"]


def test_a_callback_that_cannot_be_placed_fails_its_run_alone(tmp_path):
    asked = []

    def factory():
        asked.append(1)
        if len(asked) == 1:
            raise LookupError("not now")
        return Hears([])

    one = experiment(tmp_path, [factory])
    one._build_managers = list
    result = one.run()
    assert [arm.status for arm in result.arms] == ["failed", "completed"]
    assert "not now" in result.arms[0].error


# -- scores and records ----------------------------------------------------------------------------


def no_number(policy):
    return {"score": float("nan"), "best": float("inf")}


def test_a_score_that_is_no_number_is_missing_and_ends_nothing(tmp_path):
    bad = {"name": "after", "evaluator": f"{__name__}:no_number"}
    metadata = {"metadata": {"benchmark": [bad], "success_metric": "after.score"}}
    listener = Listener()
    result = experiment(tmp_path, [listener], **metadata).run()
    assert (result.status, result.best_arm) == ("completed", None)
    assert result.arms[0].eval_metrics["after"]["best"] == float("inf")
    again = experiment(tmp_path, **metadata).run()
    assert again.arms[0].eval_metrics["after"]["best"] == float("inf")
    assert listener.heard[-1] == "experiment_end completed"


def test_what_is_refused_leaves_the_record_as_it_was(tmp_path):
    experiment(tmp_path).run()
    before, listener = header(tmp_path), Listener()
    with pytest.raises(ConfigError, match="train_batch_size"):
        experiment(tmp_path, [listener], runs={"a": {**RUN, "train_batch_size": 2}, "b": RUN}).run()
    assert header(tmp_path) == before
    assert listener.heard == []


@pytest.mark.parametrize("killed", [False, True], ids=["interrupted", "killed"])
def test_a_run_that_was_gone_on_with_by_itself_is_benchmarked_too(tmp_path, undisturbed, killed):
    with pytest.raises(KeyboardInterrupt):
        experiment(tmp_path, [Signals("train_end a", signal.SIGINT)]).run()
    if killed:  # before it could write down what it came to
        (tmp_path / "e" / "a" / "arm.json").unlink()
    run_recipe(plan(experiment(tmp_path).config)[0][0].config, resume="auto")
    assert json.loads((tmp_path / "e" / "a" / "run.json").read_text())["status"] == "completed"
    experiment(tmp_path).run()
    assert came_to(tmp_path) == undisturbed


def test_complete_runs_are_scored_again_by_a_benchmark_that_changed_and_not_trained_again(tmp_path):
    experiment(tmp_path).run()
    listener = Listener()
    more = {"metadata": {"benchmark": [BENCHMARK | {"count": 6}], "success_metric": "after.by_place"}}
    result = experiment(tmp_path, [listener], **more).run()
    assert result.status == "completed"
    assert [line for line in listener.heard if line.startswith("benchmark_eval after")] == [
        "benchmark_eval after None 6"
    ] * 2
    assert [len(arm.evals) for arm in result.arms] == [3, 3]
    assert not any(line.startswith("eval held_out") for line in listener.heard)


def test_it_says_how_far_it_is_while_it_goes_on(tmp_path, caplog):
    seen, written_too_early = [], []

    class Looks(Callback):
        def on_run_start(self, ctx):
            told = header(tmp_path)
            seen.append((told["status"], [arm["name"] for arm in told["arms"]]))

        def on_run_end(self, ctx, run_result, arm):
            written_too_early.append((tmp_path / "e" / arm.name / "arm.json").exists())

    experiment(tmp_path, [Looks()]).run()
    told = [record.getMessage() for record in caplog.records if record.name == "proa.experiments"]
    assert [line.split(" 0")[0] for line in told] == ["a: completed, held_out.exact", "b: completed, held_out.exact"]
    assert seen == [("running", []), ("running", ["a"])]
    assert written_too_early == [False, False]


def test_the_same_experiment_object_tries_a_failed_run_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = experiment(tmp_path, runs={"a": {**RUN, "model": {"path": "later"}}, "b": RUN})
    assert [arm.status for arm in one.run().arms] == ["failed", "completed"]
    shutil.copytree(tmp_path / "e" / "b" / "model", tmp_path / "later")
    assert [arm.status for arm in one.run().arms] == ["completed", "completed"]


def test_a_header_that_is_complete_is_not_enough_and_neither_is_an_arm(tmp_path):
    experiment(tmp_path).run()
    arm, run = tmp_path / "e" / "a" / "arm.json", tmp_path / "e" / "b" / "run.json"
    arm.write_text(arm.read_text().replace('"status": "completed"', '"status": "failed"'))
    run.write_text(run.read_text().replace('"status": "completed"', '"status": "cancelled"'))
    listener = Listener()
    experiment(tmp_path, [listener]).run()
    assert [line for line in listener.heard if line.startswith("run_start")] == ["run_start a", "run_start b"]


def test_ids_of_any_kind_are_recorded(tmp_path):
    class Names(Callback):
        def on_group_start(self, ctx, group_name):
            ctx.ids[f"group:{group_name}"] = uuid.UUID(int=7)

        def on_run_end(self, ctx, run_result, arm):
            run_result.extras["seen"] = {1, 2}

    result = experiment(tmp_path, [Names()], runs={"a": RUN}, n_repeats=2).run()
    assert result.arms[0].group_id == str(uuid.UUID(int=7))
    assert result.status == "completed"


def test_an_arm_is_read_back_as_it_was_written(tmp_path):
    planned = experiment(tmp_path)
    result = planned.run()
    for chain, arm in zip(planned.plan, result.arms, strict=True):
        assert load_arm(chain[0], planned.config.metadata.benchmark) == arm
    assert result.arms[0].run_result.artifacts.checkpoints
    assert result.arms[0].train_seconds > 0
    assert result.arms[0].eval_seconds > 0


def test_the_folder_of_a_run_and_a_callback_without_its_list_are_refused(tmp_path):
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "run.json").write_text("{}")
    with pytest.raises(RunFolderError, match="is the folder of a run"):
        experiment(tmp_path).run()
    with pytest.raises(ProaError, match="give a list"):
        experiment(tmp_path, Listener())


def test_what_is_heard_again_of_a_run_that_was_cut_off_at_its_benchmark(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        experiment(tmp_path, [Signals("train_end a", signal.SIGTERM)]).run()
    listener = Listener()
    experiment(tmp_path, [listener]).run()
    again = [line for line in of_a_run("a") if "held_out" not in line]
    assert listener.heard[1 : 1 + len(again)] == again


def never(completions, **_):
    raise ValueError("not today")


def always(completions, **_):
    return [float(len(completion)) for completion in completions]


def test_a_run_that_failed_before_its_first_checkpoint_can_be_corrected(tmp_path):
    rl = {
        **RUN, "algorithm": "grpo", "sampling": {"group_size": 2, "max_new_tokens": 4}, "eval": [],
        "optimizer": {"learning_rate": 1e-3}, "total_steps": 8,
    }  # fmt: skip
    wrong = {**rl, "reward": {"functions": [f"{__name__}:never"], "workers": 0}}
    right = {**rl, "reward": {"functions": [f"{__name__}:always"], "workers": 0}}
    first = experiment(tmp_path, runs={"a": wrong, "b": RUN}).run()
    assert [arm.status for arm in first.arms] == ["failed", "completed"]
    assert "not today" in first.arms[0].error
    second = experiment(tmp_path, runs={"a": right, "b": RUN}).run()
    assert [arm.status for arm in second.arms] == ["completed", "completed"]
    saved = json.loads((tmp_path / "e" / "a" / "config.json").read_text())
    assert saved["reward"]["functions"] == [f"{__name__}:always"]
