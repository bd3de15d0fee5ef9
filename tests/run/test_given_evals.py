"""Evals whose data and functions are given in Python."""

import json

import pytest
from tests.small import DETACHED, MODEL_WITH_END

from proa.config import ConfigError
from proa.recipes import grpo, sft
from proa.tasks.builtin.characters import tokenizer

ROWS = [{"prompt": f"{number}>", "answer": str(number)} for number in range(10, 18)]
HELD_OUT = [{"prompt": f"{number}>", "answer": str(number)} for number in range(90, 94)]


def spread(completions, **columns):
    return [float(place) for place in range(len(completions))]


def begins_right(completions, answer):
    return [float(text[:1] == one[:1]) for text, one in zip(completions, answer, strict=True)]


def scores(tmp_path):
    return json.loads((tmp_path / "small" / "run.json").read_text())["evals"]


def settings(tmp_path, **changes):
    settings = {**DETACHED, "model": {"config": MODEL_WITH_END}, "total_steps": 1, "output_dir": tmp_path}
    return {**settings, "name": "small", "task": ROWS, "tokenizer": tokenizer(), **changes}


def test_data_and_metric_of_an_eval_may_be_objects_and_the_reward_of_the_run_is_the_default(tmp_path):
    evals = [
        {"name": "held", "source": HELD_OUT, "metric": begins_right},
        {"name": "same", "source": HELD_OUT},
    ]
    grpo(**settings(tmp_path, reward={"functions": spread, "workers": 0}, eval=evals))
    assert {name: next(iter(metrics)) for name, metrics in scores(tmp_path).items()} == {
        "held": "begins_right",
        "same": "spread",
    }
    written = json.loads((tmp_path / "small" / "config.json").read_text())["eval"]
    assert [(one["source"], one["metric"]) for one in written] == [
        ("(given in Python)", "begins_right (given in Python)"),
        ("(given in Python)", None),
    ]


def test_the_held_out_data_of_a_supervised_run_may_be_an_object(tmp_path):
    given = settings(tmp_path, eval=[{"name": "held", "source": HELD_OUT}])
    sft(**{key: value for key, value in given.items() if key not in ("reward", "sampling", "wait_timeout")})
    assert "eval_loss" in scores(tmp_path)["held"]


def test_an_eval_without_data_beside_given_data_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="eval held has no data of its own"):
        grpo(**settings(tmp_path, reward=spread, eval=[{"name": "held"}]))
