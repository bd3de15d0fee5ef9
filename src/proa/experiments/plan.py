"""What an experiment runs: arms times repeats, or chains of stages, by name and in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import ConfigError, ExperimentConfig, RunConfig, arm_config


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment."""

    key: str
    """Its name, and that of its folder."""
    arm: str
    """Which arm, and in a continual experiment which stage of it, this is a run of."""
    config: RunConfig
    group: str | None = None

    @property
    def seed(self) -> int:
        return self.config.seed


Chain = tuple[PlannedRun, ...]
"""Runs that come one after the other, each from the weights of the one before; mostly it is one run alone."""


def plan(config: ExperimentConfig) -> list[Chain]:
    """All runs, arms in order and repeats of an arm adjacent. What is wrong with any of them is found here."""
    chains = [_chain(config, arm, seed) for arm in config.arms for seed in _seeds(config, arm)]
    keys = [run.key for chain in chains for run in chain]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigError(f"two runs would be called {twice}: name arms otherwise")
    return chains


def _seeds(config: ExperimentConfig, arm: str) -> list[int]:
    first = arm_config(config, arm).seed if config.base_seed is None else config.base_seed
    return [first + repeat for repeat in range(config.n_repeats)]


def _chain(config: ExperimentConfig, arm: str, seed: int) -> Chain:
    suffix = f"__s{seed}" if config.n_repeats > 1 else ""
    if config.continual is None:
        planned = arm_config(config, arm, name=arm + suffix, seed=seed)
        return (PlannedRun(arm + suffix, arm, planned, arm if config.n_repeats > 1 else None),)
    stages: list[PlannedRun] = []
    for number, dataset in enumerate(config.continual.datasets):
        name = config.continual.name_template.format(arm=arm, stage=number)
        changes = {"name": name + suffix, "seed": seed, "task": dataset, **_goes_on_from(stages, config.folder)}
        group = name if config.n_repeats > 1 else arm
        stages.append(PlannedRun(name + suffix, name, arm_config(config, arm, **changes), group))
    return tuple(stages)


def _goes_on_from(stages: list[PlannedRun], folder: Path) -> dict[str, Any]:
    """What the next stage's model is: that of the stage before, or its adapter over the base that all stages have."""
    if not stages:
        return {}
    first, before = stages[0], stages[-1]
    own = first.config.model.model_dump(include={"tokenizer", "dtype", "device", "trust_remote_code"})
    if before.config.lora is None:
        return {"model": {**own, "path": str(folder / before.key / "model")}, "warm_start": None}
    base = first.config.model.path if first.config.warm_start is None else None
    base = base or str(folder / first.key / "base")
    return {
        "model": {**own, "path": base},
        "lora": {"path": str(folder / before.key / "model")},
        "warm_start": None,
    }
