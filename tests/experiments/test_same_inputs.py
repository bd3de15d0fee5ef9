"""Arms of an experiment that was begun again after its data, reward, model or algorithm had been edited."""

import importlib
import json
import os
import sys

import pytest
from tests.small import MODEL

from proa import Experiment
from proa.policy.models import load_model, save_model
from proa.tasks.builtin.characters import tokenizer

GRPO = {
    "algorithm": "grpo", "total_steps": 1, "train_batch_size": 4, "model": "model", "task": "rows.jsonl",
    "sampling": {"group_size": 2, "max_new_tokens": 3}, "reward": {"workers": 0, "functions": ["judge_of_arms:judge"]},
}  # fmt: skip
SFT = {"algorithm": "sft", "total_steps": 1, "train_batch_size": 4, "model": "model", "task": "rows.jsonl"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    save_model(load_model(MODEL), tokenizer(), tmp_path / "model")
    write(tmp_path)
    yield tmp_path
    forget()


def forget():
    for name in ("judge_of_arms", "algorithm_of_arms", "hook_of_arms"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


ALGORITHM = """
from dataclasses import dataclass
from proa.algorithms import GRPO

@dataclass(frozen=True, kw_only=True)
class Mine(GRPO):
    def advantages(self, rewards_B, groups_B):
        return {sign}super().advantages(rewards_B, groups_B)
"""
HOOK = """
from proa import MakerCallback

class Doubling(MakerCallback):
    def on_make_experience_end(self, experience):
        experience.reward = {sign}2 * experience.reward
"""
OWN = {**GRPO, "algorithm": "algorithm_of_arms:Mine", "callbacks": [{"kind": "hook_of_arms:Doubling"}]}


def write(place, *, first="0", sign="", template=None, **signs):
    for name, code in (("algorithm", ALGORITHM), ("hook", HOOK)):
        (place / f"{name}_of_arms.py").write_text(code.format(sign=signs.get(name, "")))
    if template is not None:
        (place / "model" / "chat_template.jinja").write_text(template)
    rows = [{"prompt": f"{n}>", "answer": str(n) if n else first} for n in range(8)]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = f"def judge(completions, **_):\n    return [{sign}float(len(one)) for one in completions]\n"
    (place / "judge_of_arms.py").write_text(code + f"# {sign}\n" * len(sign))
    forget()


def run(place, arms, run):
    runs = {name: {**run, "optimizer": {"learning_rate": 1e-3 * (n + 1)}} for n, name in enumerate(arms)}
    return Experiment({"name": "small", "output_dir": str(place), "runs": runs}).run()


def test_an_arm_that_worked_on_something_else_is_named_in_the_conclusion(place, caplog):
    edits = {
        "sft": (
            SFT,
            {"first": "7"},
            "b did not work on the same inputs as a: row 0 changed (what the model reads",
        ),
        "grpo": (
            GRPO,
            {"sign": "-"},
            "b did not work on the same inputs as a: the reward judge has changed",
        ),
        "own": (
            OWN,
            {"algorithm": "-", "hook": "-"},
            "b did not work on the same inputs as a: the algorithm has changed",
            "b did not work on the same inputs as a: the hook Doubling, which may change experience, has changed",
        ),
        "templated": (
            SFT,
            {"template": "{{ messages[0].content }}"},
            "b did not work on the same inputs as a: the tokenizer has changed",
        ),
    }
    for name, (settings, edit, *sentences) in edits.items():
        (place / name).mkdir()
        write(place)
        assert "Beware" not in run(place / name, "a", settings).conclusion, name
        write(place, **edit)
        result = run(place / name, "ab", settings)
        for words in sentences:
            assert f"Beware: {words}" in result.conclusion, result.conclusion
            assert words in caplog.text


def test_arms_that_worked_on_the_same_are_not_warned_of(place):
    assert "Beware" not in run(place, "ab", SFT).conclusion
