"""What a reward function logs while it judges a batch: metrics of the call, and values of each sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..data.state import metric_number

LOGGERS = ("log_metric", "log_extra")
"""Parameters of reward functions that are called to log something."""


class CallLog:
    """Collects what one call logs, sample by sample: that way it stays with the samples wherever they go.

    >>> log = CallLog(samples=2)
    >>> log.log_metric("too_long", 0.5)
    >>> log.log_extra("found", ["4", None])
    >>> log.values_of(0), log.values_of(1)
    ({'too_long': 0.5, 'found': '4'}, {'too_long': 0.5})
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._metrics: dict[str, list[float]] = {}
        self._columns: dict[str, list[Any]] = {}

    def log_metric(self, name: str, value: Any) -> None:
        """Log a number that is of the whole batch; several values of one name are averaged."""
        self._metrics.setdefault(name, []).append(float(metric_number(name, value)))

    def log_extra(self, column: str, values: Iterable[Any]) -> None:
        """Log one value for each sample, None where there is none; numbers become a metric too, their mean."""
        found = [_plain(value) for value in values]
        if len(found) != self._samples:
            raise ValueError(f"log_extra({column!r}) was given {len(found)} values for {self._samples} samples")
        metric_number(column, 0)  # it may become a metric: the name must be one that a metric can have
        self._columns[column] = found

    def values_of(self, index: int) -> dict[str, float | str]:
        """What was logged of the sample at this place."""
        logged: dict[str, float | str] = {name: sum(own) / len(own) for name, own in self._metrics.items()}
        return logged | {name: own[index] for name, own in self._columns.items() if own[index] is not None}


def _plain(value: Any) -> float | str | None:
    """As it can be saved and drawn: a number, or text."""
    if value is None or isinstance(value, str):
        return value
    try:
        return float(metric_number("value", value))
    except TypeError:
        return str(value)
