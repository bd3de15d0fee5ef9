"""What `proa train` shows at the end of a run."""

import os
import sys

import pytest
import torch
import yaml
from tests.small import DETACHED

from proa.cli.main import main
from proa.cli.train import show_samples
from proa.terminal import Console

EVALUATORS = """
def scores(policy):
    return {"accuracy": 0.5, "predictions": [{"task_id": "0", "reward": 1}]}

def texts(policy):
    ours = range(policy.step, policy.step + 2)
    rows = [{"prompt": str(n), "completion": f"{n} after {policy.step}", "answer": "mine"} for n in ours]
    return {"accuracy": 0.5, "predictions": [{"task_id": "0", "reward": 1}, *rows]}
"""


@pytest.fixture
def trained(tmp_path, monkeypatch, capsys):
    """What `proa train` prints of a run with these evaluators."""
    torch.set_num_threads(1)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own_evaluators", raising=False)
    (tmp_path / "own_evaluators.py").write_text(EVALUATORS)

    def train(*names):
        evals = [{"name": name, "evaluator": f"own_evaluators:{name}", "run_every": 1} for name in names]
        config = {**DETACHED, "total_steps": 1, "name": "run", "output_dir": ".", "eval": evals}
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
        assert main(["train", "run.yaml"]) == 0
        return capsys.readouterr()

    return train


def test_rows_of_an_evaluator_are_shown_where_they_have_a_prompt_and_a_completion(trained):
    printed = trained("scores", "texts")
    assert "scores: samples" not in printed.out
    assert "texts: samples" in printed.out
    assert "1 after 0" in printed.out  # of 0 and 1, and then of 1 and 2, this is the prompt that both have
    assert "1 after 1" in printed.out
    assert "2 after 1" not in printed.out
    assert "mine" in printed.out


def test_damaged_samples_are_reported_and_do_not_fail_the_run(tmp_path, capsys):
    (tmp_path / "evals" / "own").mkdir(parents=True)
    (tmp_path / "evals" / "own" / "step_0.jsonl").write_text("{half a line")
    show_samples(Console(), tmp_path, "own")
    assert "the samples of own cannot be shown" in capsys.readouterr().err
