"""Finds weights by name: those of a run or a checkpoint, or in the folder of a model or an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import ConfigError, RunConfig, load_run_config
from ..evals.evaluation import weights_version
from ..record.checkpoints import CheckpointManager
from ..record.reading import read_header
from ..resume.configuration import load_saved_config

MODEL_NAME = "model"
"""The folder of a run's final weights."""


@dataclass(frozen=True)
class FoundWeights:
    """The folder of the weights, and the configuration of their run where it is known."""

    folder: Path
    config: RunConfig
    run: Path | None = None
    version: int = 0
    steps: int = 0
    trained_by: Path | None = None
    """The run that trained them, also if they are used like any other model."""
    checkpoint: str = ""
    """The name of the checkpoint in the run."""


def run_of(source: Path, checkpoint: str | None) -> tuple[Path, str | None] | None:
    """The run and the checkpoint that a folder is or belongs to; None for a model's folder."""
    if (source / "run.json").is_file():
        return source, checkpoint
    run = source.resolve().parent.parent
    if (run / "run.json").is_file() and source.resolve().parent == CheckpointManager(run).folder.resolve():
        rows = {CheckpointManager(run).path(row).name: row.name for row in CheckpointManager(run).rows}
        if source.resolve().name in rows:
            return run, checkpoint or rows[source.resolve().name]
    return None


def run_weights(run: Path, checkpoint: str | None, flags: Sequence[str] = ()) -> FoundWeights:
    """The weights of a checkpoint of a run, by default its final one, or its last."""
    config = load_saved_config(run, flags)
    manager = CheckpointManager(run)
    row = manager.row(checkpoint) if checkpoint else manager.final() or manager.latest()
    if row is None or row.sampler_path is None:
        raise ConfigError(f"{run} has no checkpoint yet: there are no weights to use")
    manager.verify(row)
    version = weights_version(config, row.step)
    return FoundWeights(run / row.sampler_path, config, run, version, row.step, run, row.name)


def model_weights(
    source: Path, checkpoint: str | None, flags: Sequence[str] = (), *, task: str = "sort_digits"
) -> FoundWeights:
    """The weights in the folder of a model or an adapter."""
    if not source.is_dir():
        raise ConfigError(f"there is no folder {source}: give the folder of a run, a model or an adapter")
    if checkpoint is not None:
        raise ConfigError(f"{source} is not a run's folder: it has no checkpoints")
    # The other settings of a run are not used; they only have to be consistent.
    unused: dict[str, Any] = {"total_steps": 1, "train_batch_size": 2, "sampling.group_size": 2, "task.source": task}
    config = load_run_config(None, flags, **{"model.path": str(source)}, **unused)
    parent = source.resolve().parent
    if source.resolve().name != MODEL_NAME or not (parent / "run.json").is_file():
        return FoundWeights(source, config)
    steps = int(read_header(parent / "run.json").get("steps_run", 0))
    return FoundWeights(source, config, None, weights_version(load_saved_config(parent), steps), steps, parent)
