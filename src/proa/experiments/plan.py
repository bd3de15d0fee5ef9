"""The runs of an experiment: arms times repeats, or chains of stages, by name and in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..callbacks import check_callback
from ..config import ConfigError, ExperimentConfig, RunConfig, arm_config
from ..config.sections import CallbackSection


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment."""

    key: str
    """Its name, and that of its folder."""
    arm: str
    """The arm, or in a continual experiment the stage of an arm, that it belongs to."""
    config: RunConfig
    group: str | None = None

    @property
    def seed(self) -> int:
        return self.config.seed


Chain = tuple[PlannedRun, ...]
"""Runs one after the other, each from the weights of the previous one; usually a single run."""


def plan(config: ExperimentConfig) -> list[Chain]:
    """All runs, arms in order and repeats of an arm adjacent. Raises for a mistake in any of them."""
    _check_callbacks(config.callbacks, "")
    chains: list[Chain] = []
    for arm in config.arms:
        base = arm_config(config, arm)
        _check_callbacks(base.callbacks, f"arm {arm}: ")
        first_seed = base.seed if config.base_seed is None else config.base_seed
        chains += [_chain(config, arm, first_seed + repeat) for repeat in range(config.n_repeats)]
    keys = [run.key for chain in chains for run in chain]
    if duplicate := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigError(f"two runs would be called {duplicate}: give the arms other names")
    return chains


def compared(chains: Sequence[Chain]) -> list[str]:
    """The arms to compare; an arm of stages is compared by its last stage."""
    return list(dict.fromkeys(chain[-1].arm for chain in chains))


def _check_callbacks(sections: Sequence[CallbackSection], prefix: str) -> None:
    """Check now what each run builds only when it starts, after others have ended."""
    for index, section in enumerate(sections):
        try:
            check_callback(section.model_dump())
        except Exception as error:  # a constructor may raise anything
            raise ConfigError(f"{prefix}callbacks.{index} ({section.kind}): {error}") from error


def _chain(config: ExperimentConfig, arm: str, seed: int) -> Chain:
    suffix = f"__s{seed}" if config.n_repeats > 1 else ""
    if config.continual is None:
        planned = arm_config(config, arm, name=arm + suffix, seed=seed)
        return (PlannedRun(arm + suffix, arm, planned, arm if config.n_repeats > 1 else None),)
    stages: list[PlannedRun] = []
    for number, dataset in enumerate(config.continual.datasets):
        name = config.continual.name_template.format(arm=arm, stage=number)
        changes = {"name": name + suffix, "seed": seed, "task": dataset, **_start_weights(stages, config.folder)}
        group = name if config.n_repeats > 1 else arm
        stages.append(PlannedRun(name + suffix, name, arm_config(config, arm, **changes), group))
    return tuple(stages)


def _start_weights(stages: list[PlannedRun], folder: Path) -> dict[str, Any]:
    """The model keys of the next stage: the previous stage's model, or its adapter over the common base."""
    if not stages:
        return {}
    previous = stages[-1]
    own = previous.config.model.model_dump(include={"tokenizer", "dtype", "device", "trust_remote_code"})
    if previous.config.lora is None:
        return {"model": {**own, "path": str(folder / previous.key / "model")}, "warm_start": None}
    base = None if previous.config.has_warm_start else previous.config.model.path
    base = base or str(folder / previous.key / "base")  # written by the first stage
    return {
        "model": {**own, "path": base},
        "lora": {"path": str(folder / previous.key / "model")},
        "warm_start": None,
    }
