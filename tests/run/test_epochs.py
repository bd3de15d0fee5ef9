"""`epochs` in place of `total_steps`: passes over the prompts, or over the data."""

import json

import pytest
from tests.small import DETACHED, MODEL

from proa.config import ConfigError, load_run_config
from proa.recipes import grpo, sft
from proa.tasks.builtin.characters import tokenizer

ROWS = [{"prompt": f"{digit}>", "answer": str(digit)} for digit in range(10)]


def saved_config(tmp_path):
    return json.loads((tmp_path / "run" / "config.json").read_text())


@pytest.mark.parametrize(("epochs", "steps"), [(1, 4), (2, 7), (0.5, 2), (0.01, 1)])
def test_an_epoch_is_a_pass_over_the_rows(tmp_path, epochs, steps):
    settings = {"model": {"config": MODEL}, "tokenizer": tokenizer(), "task": ROWS, "train_batch_size": 3}
    assert sft(output_dir=str(tmp_path), name="run", epochs=epochs, **settings).global_step == steps
    assert (saved_config(tmp_path)["total_steps"], saved_config(tmp_path)["epochs"]) == (steps, None)


def test_an_epoch_of_a_detached_run_is_a_pass_over_the_prompts(tmp_path):
    settings = {**DETACHED, "task": {"source": "sort_digits", "count": 10}}  # four prompts of a batch, twice each
    del settings["total_steps"]
    state = grpo(output_dir=str(tmp_path), name="run", epochs=2, **settings)
    assert state.global_step == saved_config(tmp_path)["total_steps"] == 5
    assert grpo(output_dir=str(tmp_path), name="run", epochs=2, resume="auto", **settings).global_step == 5


def test_one_of_the_two_is_given():
    settings = {"train_batch_size": 2, "model": {"config": MODEL}, "task": "sort_digits", "algorithm": "sft"}
    with pytest.raises(ConfigError, match="'total_steps' is missing: give it, at least 1, or epochs"):
        load_run_config(None, **settings)
    with pytest.raises(ConfigError, match="total_steps and epochs both say how long to train"):
        load_run_config(None, total_steps=1, epochs=1, **settings)
