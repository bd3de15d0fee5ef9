"""The curves in `metrics.jsonl`, by steps done: what is measured in the first step stands at 1, a baseline at 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..record.run_folder import BrokenRecordError
from .curves import Series
from .lines import objects_in

_KEYS_OF_A_ROW = ("step", "epoch", "time")
_MOST_STEPS = 1 << 53
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}
IDLE = {"trainer": "trainer idle share", "maker": "makers idle share"}


@dataclass(slots=True)
class Metrics:
    """What a run measured. Names are as they were written."""

    training: dict[str, Series] = field(default_factory=dict)
    evals: dict[str, Series] = field(default_factory=dict)
    values: int = 0
    """How many numbers were read."""
    last_step: int = 0


def read_metrics(path: Path, eval_names: Sequence[str] = ()) -> Metrics:
    """All of the file, one line at a time."""
    metrics = Metrics()
    of_evals = tuple(f"{name}." for name in eval_names)
    for row in objects_in(path):
        step = row.get("step")
        if not isinstance(step, int) or not -1 <= step < _MOST_STEPS:
            raise BrokenRecordError(f"{path} is broken: a row's step is {step!r}")
        metrics.last_step = max(metrics.last_step, step + 1)
        for name, said in row.items():
            if name in _KEYS_OF_A_ROW:
                continue
            value = number_in(said)
            if value is not None:
                kind = metrics.evals if of_evals and name.startswith(of_evals) else metrics.training
                kind.setdefault(name, Series()).add(step + 1, value)
                metrics.values += 1
        for actor, share in _idle_shares(row):
            metrics.training.setdefault(IDLE[actor], Series()).add(step + 1, share)
    return metrics


def number_in(said: Any) -> float | None:
    """The number that a record says, NaN and infinities included; None if it says something else."""
    if isinstance(said, int | float):
        try:
            return float(said)
        except OverflowError:
            return math.inf if said > 0 else -math.inf
    return _NOT_FINITE.get(said.lower()) if isinstance(said, str) else None


def _idle_shares(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Of the time that a step took its trainer, and that its samples took their makers, the share spent waiting."""
    shares = []
    for actor in IDLE:
        spent = {
            name: value
            for name, said in row.items()
            if name.startswith(f"{actor}.") and name.endswith("_seconds") and (value := number_in(said)) is not None
        }
        total = sum(spent.values())
        if total > 0 and math.isfinite(total):
            shares.append((actor, spent.get(f"{actor}.wait_seconds", 0.0) / total))
    return shares
