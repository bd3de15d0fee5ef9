"""A run that is resumed with a larger `total_steps` trains longer, from where it was."""

import json
import logging

import pytest
from tests.small import DETACHED, MODEL_WITH_END

from proa import Callback
from proa.callbacks import EarlyStopping
from proa.cli.main import main
from proa.config import ConfigError
from proa.recipes import grpo, sft
from proa.record.checkpoints import CheckpointManager

SUPERVISED = {"model": {"config": MODEL_WITH_END}, "task": "sort_digits", "train_batch_size": 4, "total_steps": 3}


def steps(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows if "loss" in row]


def header(folder):
    return json.loads((folder / "run.json").read_text())


class Interrupts(Callback):
    def on_step_end(self, state, step_idx, batch, metrics):
        if step_idx == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("save_every", [0, 1])
@pytest.mark.parametrize(("recipe", "settings"), [(grpo, DETACHED), (sft, SUPERVISED)])
def test_a_complete_run_trains_longer(tmp_path, recipe, settings, save_every):
    settings = settings | {"name": "run", "output_dir": tmp_path, "checkpoint": {"save_every": save_every}}
    first = recipe(**settings)
    state = recipe(**settings | {"total_steps": 6}, resume="auto")
    assert (first.global_step, state.global_step, state.num_steps) == (settings["total_steps"], 6, 6)
    assert state.resumed_from is not None
    assert steps(tmp_path / "run") == [0, 1, 2, 3, 4, 5]
    assert header(tmp_path / "run")["status"] == "completed"
    finals = [row.step for row in CheckpointManager(tmp_path / "run").rows if row.final]
    assert finals == [6]


def test_supervised_it_is_the_run_that_was_that_long(tmp_path):
    settings = SUPERVISED | {"output_dir": tmp_path, "optimizer.schedule": "constant"}
    sft(**settings | {"name": "longer"})
    sft(**settings | {"name": "longer", "total_steps": 6}, resume="auto")
    sft(**settings | {"name": "whole", "total_steps": 6})
    digests = {header(tmp_path / name)["weights_digest"] for name in ("longer", "whole")}
    assert len(digests) == 1  # the optimizer's moments were kept


def test_an_interrupted_run_may_train_longer_from_the_command_line(tmp_path, caplog):
    settings = {**DETACHED, "name": "run", "output_dir": str(tmp_path), "checkpoint": {"save_every": 1}}
    with pytest.raises(KeyboardInterrupt):
        grpo(**settings, callbacks=[Interrupts()])
    with caplog.at_level(logging.WARNING):
        assert main(["resume", str(tmp_path / "run"), "--total_steps", "6"]) == 0
    assert "total_steps was 4 and is 6" in caplog.text
    assert steps(tmp_path / "run") == [0, 1, 2, 3, 4, 5]


def test_a_schedule_that_follows_the_length_says_what_happens(tmp_path, caplog):
    settings = SUPERVISED | {"name": "run", "output_dir": tmp_path, "optimizer.schedule": "linear"}
    sft(**settings)
    sft(**settings | {"total_steps": 6}, resume="auto")
    assert "optimizer.schedule is linear, which follows the length" in caplog.text


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        (sft, SUPERVISED | {"train_epochs": 2}, "how long each of its 2 epochs is"),
        (grpo, DETACHED | {"total_steps": 3, "update_steps": 2}, "its last episode is shorter than the others"),
    ],
)
def test_what_would_change_steps_that_were_made_is_refused(tmp_path, recipe, settings, message):
    recipe(**settings, name="run", output_dir=tmp_path)
    with pytest.raises(ConfigError, match=message):
        recipe(**settings | {"total_steps": 8}, name="run", output_dir=tmp_path, resume="auto")


def test_a_run_that_was_stopped_is_not_trained_longer(tmp_path):
    settings = SUPERVISED | {"name": "run", "output_dir": tmp_path}
    stops = EarlyStopping("loss", patience=1, min_delta=100.0)
    sft(**settings, callbacks=[stops])
    with pytest.raises(ConfigError, match="was stopped by EarlyStopping and would stop again"):
        sft(**settings | {"total_steps": 9}, resume="auto")
