"""Runs in processes of their own, what is to be true of one that was cut off, and how it goes on."""

import json
import signal

from tests import small
from tests.chaos.killed_runs import outcome_of
from tests.small import MODEL
from transformers import AutoModelForCausalLM

from proa import CheckpointManager

DETACHED = small.DETACHED | {
    "total_steps": 5, "optimizer": {"learning_rate": 3e-3, "schedule": "linear"},
    "eval": [{"name": "held_out", "count": 4, "run_every": 2}], "checkpoint": {"save_every": 2, "keep": 2},
}  # fmt: skip
SUPERVISED = {
    "algorithm": "sft", "total_steps": 4, "train_epochs": 2, "train_batch_size": 4, "model": {"config": MODEL},
    "task": {"source": "sort_digits", "count": 64}, "optimizer": {"learning_rate": 3e-3, "schedule": "linear"},
    "eval": [{"name": "held_out", "count": 4, "run_every": 3}], "checkpoint": {"save_every": 3, "keep": 2},
}  # fmt: skip


def begin(nursery, folder, settings, **changes):
    """Start `proa train`; returns when signals are listened for."""
    (folder / "run.yaml").write_text(json.dumps({**settings, "name": "run", "output_dir": ".", **changes}))
    run = nursery.start(folder, "train", "run.yaml")
    run.wait_until_it_listens(signal.SIGTERM)
    return run


def go_on(nursery, folder):
    """To the end, with `proa resume`, or from the beginning if the run was cut off before it had a folder."""
    there = (folder / "run" / "run.json").exists()
    code, printed = nursery.run(folder, *(("resume", "run") if there else ("train", "run.yaml")))
    assert code == 0, f"exit code {code}: {printed}"


def held_up(nursery, folder, settings, moment, step=0, **changes):
    """A run that has begun and waits at a moment."""
    marker = folder / "held_up"
    callback = {"kind": "holds_up", "params": {"marker": str(marker), "moment": moment, "step": step}}
    run = begin(nursery, folder, settings, callbacks=[callback], **changes)
    run.wait_until(marker.exists)
    return run


def let_go(folder):
    """Have a run that waits go on."""
    (folder / "held_up.over").touch()


def header_of(folder):
    return json.loads((folder / "run" / "run.json").read_text())


def came_to(folder):
    """What a run came to that is the same however often it was cut off. (Which checkpoints it has is not.)"""
    outcome = outcome_of(folder / "run")
    return {name: outcome[name] for name in ("status", "digest", "steps", "trained", "evals", "metrics", "predictions")}


def newest_checkpoint(folder):
    """Of a run that was cut off: whole, the newest that is named, and loaded as others load it. None if it has none."""
    manager = CheckpointManager(folder / "run")
    if not manager.rows:
        return None
    row, passed_over = manager.newest_good()
    assert passed_over == []
    AutoModelForCausalLM.from_pretrained(manager.path(row) / "model")
    return row
