"""Whole runs whose evals go on in the background: the same weights, the same scores of the same weights."""

import json
import threading
import time

import pytest
from tests.experiments.small_experiment import MODEL

from proa import Callback
from proa.config import ConfigError, load_run_config
from proa.recipes import grpo, sft

COMMON = {
    "model": {"config": MODEL}, "task": {"source": "sort_digits", "count": 32}, "total_steps": 6, "train_batch_size": 8,
    "optimizer": {"learning_rate": 3e-3}, "checkpoint": {"save_every": 4},
}  # fmt: skip


SAMPLING = {"sampling": {"group_size": 4, "max_new_tokens": 7}}
THREADS = []
STEPS = {"done": 0}


class CountsSteps(Callback):
    def on_step_end(self, state, step_idx, batch, metrics):
        STEPS["done"] = step_idx + 1


def sees_weights(policy):
    """Something that differs at every step, of the model itself and of what it generates. In the background it waits
    until training is a step further, where it comes to that."""
    THREADS.append(threading.current_thread().name)
    deadline = time.monotonic() + 10
    while THREADS[-1] == "eval own" and STEPS["done"] <= policy.step < 6 and time.monotonic() < deadline:
        time.sleep(0.001)
    first = next(iter(policy.model.parameters()))
    return {"norm": float(first.norm()), "length": len(policy.generate(["12>"], max_new_tokens=6)[0][0])}


def evals(apart):
    own = {"name": "own", "evaluator": sees_weights, "run_every": 3, "apart": apart}
    return [{"name": "held", "kind": "generate", "count": 4, "run_every": 2, "max_new_tokens": 7, "apart": apart}, own]


def outcome(folder):
    header = json.loads((folder / "run.json").read_text())
    rows = [json.loads(line) for line in (folder / "evals.jsonl").read_text().splitlines()]
    scores = sorted((row["name"], row["step"], json.dumps(row["metrics"])) for row in rows)
    predictions = {path.name: path.read_text() for path in (folder / "evals" / "held").iterdir()}
    return header["weights_digest"], scores, predictions, header["evals"]


def train(algorithm, folder, apart, callbacks=(), **more):
    THREADS.clear()
    STEPS["done"] = 0
    more |= {"callbacks": [CountsSteps(), *callbacks]}
    more |= SAMPLING if algorithm is grpo else {}
    algorithm(None, name=f"apart_{apart}", output_dir=folder, eval=evals(apart), **COMMON, **more)
    assert {name == "eval own" for name in THREADS} == {apart}
    return outcome(folder / f"apart_{apart}")


@pytest.mark.parametrize("algorithm", [grpo, sft])
def test_a_run_learns_and_scores_the_same_whether_its_evals_go_on_apart_or_not(algorithm, tmp_path):
    apart, within = train(algorithm, tmp_path, True), train(algorithm, tmp_path, False)
    assert apart == within
    assert [step for name, step, _ in apart[1] if name == "held"] == [-1, 1, 3, 5]
    assert len({metrics for name, _, metrics in apart[1] if name == "own"}) == 3  # of other weights each time
    versions = {
        file: {json.loads(row)["policy_version"] for row in rows.splitlines()} for file, rows in apart[2].items()
    }
    pushed = {"step_0.jsonl": 0, "step_2.jsonl": 2, "step_4.jsonl": 4, "step_6.jsonl": 6}
    assert versions == {file: {version if algorithm is grpo else 0} for file, version in pushed.items()}


def never_alone(policy):
    time.sleep(0.3)
    return {"x": 1.0}


def test_a_run_that_fails_leaves_no_eval_behind(tmp_path):
    class Fails(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            if step_idx == 1:
                raise ZeroDivisionError

    evals = [{"name": "slow", "evaluator": never_alone, "run_every": 1, "apart": True, "baseline": True}]
    with pytest.raises(ZeroDivisionError):
        grpo(None, name="r", output_dir=tmp_path, eval=evals, callbacks=[Fails()], **COMMON, **SAMPLING)
    assert not [thread for thread in threading.enumerate() if thread.name == "eval slow"]


class Leaves(Callback):
    """Ends the run in the middle of a step, as Ctrl-C pressed twice does."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, state, step_idx, batch, metrics):
        if step_idx == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [2, 4])
def test_a_run_that_is_gone_on_with_has_the_same_scores(step, tmp_path):
    whole = train(grpo, tmp_path / "whole", True)
    with pytest.raises(KeyboardInterrupt):
        train(grpo, tmp_path / "left", True, callbacks=[Leaves(step)])
    assert train(grpo, tmp_path / "left", True, resume="auto") == whole


def test_a_loss_cannot_go_on_apart(tmp_path):
    with pytest.raises(ConfigError, match="eval e: apart is for evals that generate"):
        load_run_config(None, eval=[{"name": "e", "kind": "loss", "apart": True}], algorithm="sft", **COMMON)


@pytest.mark.parametrize("name", ["trainer", "maker", "reward"])
def test_an_eval_has_no_name_that_metrics_of_training_begin_with(name):
    with pytest.raises(ConfigError, match=f"an eval cannot be called {name}"):
        load_run_config(None, eval=[{"name": name}], **COMMON)


def test_names_of_evals_whose_scores_would_have_one_name_are_refused():
    with pytest.raises(ConfigError, match=r"evals 'a' and 'a\.b' would have scores of the same name"):
        load_run_config(None, eval=[{"name": "a.b"}, {"name": "a"}], **COMMON)
