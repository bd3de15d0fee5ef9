"""Whole runs whose evals go on in the background: the same weights, the same scores of the same weights."""

import json
import threading

import pytest
from small_experiment import MODEL

from proa import Callback
from proa.config import ConfigError, load_run_config
from proa.recipes import grpo, sft

COMMON = {
    "model": {"config": MODEL}, "task": {"source": "sort_digits", "count": 32}, "total_steps": 6, "train_batch_size": 8,
    "optimizer": {"learning_rate": 3e-3}, "checkpoint": {"save_every": 4},
}  # fmt: skip


THREADS = []


def sees_weights(policy):
    """Something that differs at every step, of the model itself and of what it generates."""
    THREADS.append(threading.current_thread().name)
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


def train(algorithm, folder, apart, **more):
    THREADS.clear()
    more |= {"sampling": {"group_size": 4, "max_new_tokens": 7}} if algorithm is grpo else {}
    algorithm(None, name=f"apart_{apart}", output_dir=folder, eval=evals(apart), **COMMON, **more)
    assert {name == "eval own" for name in THREADS} == {apart}
    return outcome(folder / f"apart_{apart}")


@pytest.mark.parametrize("algorithm", [grpo, sft])
def test_a_run_learns_and_scores_the_same_whether_its_evals_go_on_apart_or_not(algorithm, tmp_path):
    apart, within = train(algorithm, tmp_path, True), train(algorithm, tmp_path, False)
    assert apart == within
    assert [step for name, step, _ in apart[1] if name == "held"] == [-1, 1, 3, 5]
    assert len({metrics for name, _, metrics in apart[1] if name == "own"}) == 3  # of other weights each time


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


def test_names_of_evals_whose_scores_would_have_one_name_are_refused():
    with pytest.raises(ConfigError, match=r"evals 'a' and 'a\.b' would have scores of one name"):
        load_run_config(None, eval=[{"name": "a.b"}, {"name": "a"}], **COMMON)
