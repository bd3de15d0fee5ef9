"""The curves in `metrics.jsonl`, by steps done: what is measured in the first step stands at 1, a baseline at 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..record.run_folder import BrokenRecordError
from .curves import Series
from .lines import objects_in

_KEYS_OF_A_ROW = ("epoch", "time")
_MOST_STEPS = 1 << 53
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}
IDLE = {"trainer": "trainer idle share", "maker": "makers idle share"}


@dataclass(slots=True)
class Metrics:
    """What a run measured. Names are as they were written."""

    training: dict[str, Series] = field(default_factory=dict)
    evals: dict[str, Series] = field(default_factory=dict)


def read_metrics(path: Path, eval_names: Sequence[str] = ()) -> Metrics:
    """All of the file, one line at a time."""
    metrics = Metrics()
    columns: dict[str, _Column] = {}
    for row in objects_in(path):
        step = row.pop("step", None)
        if not isinstance(step, int) or not -1 <= step < _MOST_STEPS:
            raise BrokenRecordError(f"{path} is broken: a row's step is {step!r}")
        waited, spent = dict.fromkeys(IDLE, 0.0), dict.fromkeys(IDLE, 0.0)
        for name, said in row.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = _Column.of(name, eval_names)
            value = said if type(said) is float else number_in(said)
            if value is None or column.passed_over:
                continue
            column.series.add(step + 1, value)
            if column.actor:
                spent[column.actor] += value
                waited[column.actor] += value if column.is_wait else 0.0
        for actor, total in spent.items():
            if total > 0 and math.isfinite(total):
                metrics.training.setdefault(IDLE[actor], Series()).add(step + 1, waited[actor] / total)
    for name, column in columns.items():
        if len(column.series):
            (metrics.evals if column.of_eval else metrics.training)[name] = column.series
    if any(name.endswith(".eval_loss") for name in metrics.evals):
        metrics.training.pop("eval_loss", None)  # the same under a shorter name
    return metrics


@dataclass(slots=True)
class _Column:
    """A name in the rows, and what follows from it: looked at once, not for each of a million values."""

    series: Series
    passed_over: bool
    of_eval: bool
    actor: str
    """Whose seconds these are, `trainer` or `maker`; else empty."""
    is_wait: bool

    @classmethod
    def of(cls, name: str, eval_names: Sequence[str]) -> _Column:
        actor, _, what = name.partition(".")
        is_seconds = actor in IDLE and what.endswith("_seconds")
        of_eval = any(name.startswith(f"{one}.") for one in eval_names)
        return cls(Series(), name in _KEYS_OF_A_ROW, of_eval, actor if is_seconds else "", what == "wait_seconds")


def number_in(said: Any) -> float | None:
    """The number that a record says, NaN and infinities included; None if it says something else."""
    if isinstance(said, int | float):
        try:
            return float(said)
        except OverflowError:
            return math.inf if said > 0 else -math.inf
    return _NOT_FINITE.get(said.lower()) if isinstance(said, str) else None
