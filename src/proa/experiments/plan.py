"""What an experiment runs: arms times repeats, or chains of stages, by name and in order."""

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
    _try_callbacks(config.callbacks, "")
    chains: list[Chain] = []
    for arm in config.arms:
        as_written = arm_config(config, arm)
        _try_callbacks(as_written.callbacks, f"arm {arm}: ")
        _check_benchmarks(config, arm, as_written)
        chains += [_chain(config, arm, seed) for seed in _seeds(config, as_written)]
    keys = [run.key for chain in chains for run in chain]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigError(f"two runs would be called {twice}: name arms otherwise")
    return chains


def compared(chains: Sequence[Chain]) -> list[str]:
    """Which arms stand against each other. A stage is none: an arm of stages is compared by its last one."""
    return list(dict.fromkeys(chain[-1].arm for chain in chains))


def _try_callbacks(sections: Sequence[CallbackSection], whose: str) -> None:
    """Runs build theirs when others are over, and a mistake would stop all of them then."""
    for place, section in enumerate(sections):
        try:
            check_callback(section.model_dump())
        except Exception as error:  # whatever a constructor says of its parameters
            raise ConfigError(f"{whose}callbacks.{place} ({section.kind}): {error}") from error


def _check_benchmarks(config: ExperimentConfig, arm: str, as_written: RunConfig) -> None:
    evals = {section.name for section in as_written.eval}
    for benchmark in config.metadata.benchmark:
        if benchmark.name in evals:
            raise ConfigError(
                f"arm {arm}: an eval and one of metadata.benchmark are both called {benchmark.name!r}: one name, two "
                f"evals. Call one of them otherwise"
            )


def _seeds(config: ExperimentConfig, arm: RunConfig) -> list[int]:
    first = arm.seed if config.base_seed is None else config.base_seed
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
    before = stages[-1]
    own = before.config.model.model_dump(include={"tokenizer", "dtype", "device", "trust_remote_code"})
    if before.config.lora is None:
        return {"model": {**own, "path": str(folder / before.key / "model")}, "warm_start": None}
    base = None if before.config.has_warm_start else before.config.model.path
    base = base or str(folder / before.key / "base")  # the first stage made it
    return {
        "model": {**own, "path": base},
        "lora": {"path": str(folder / before.key / "model")},
        "warm_start": None,
    }
