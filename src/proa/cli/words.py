"""How the command line says things: samples, seconds, metrics, curves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..callbacks.console import sparkline
from ..record.run_folder import encode_numbers
from ..report.metrics import number_in
from ..report.text import duration, ran
from ..visible import single_line

__all__ = [
    "STYLES", "counted", "counted_of", "curve", "day", "duration", "interval", "ledger_line", "number", "ran",
    "values_line", "values_of", "written",
]  # fmt: skip

STYLES = {
    "running": "bold cyan", "completed": "bold green", "cancelled": "bold yellow", "failed": "bold red",
    "healthy": "green", "dead": "red", "suspect": "yellow", "stale": "yellow", "restarting": "yellow",
}  # fmt: skip
"""Of what is said of a run, or of one of its actors."""


def ledger_line(ledger: Mapping[str, Any]) -> str:
    """Where every sample is, as a sum."""
    reasons = ledger.get("dropped")
    told = reasons.items() if isinstance(reasons, Mapping) else ()
    dropped = ", ".join(f"{count} {single_line(str(reason))}" for reason, count in told) or "none"
    return (
        f"samples: {ledger.get('leased', 0)} leased = {ledger.get('trained', 0)} trained "
        f"+ {ledger.get('buffered', 0)} buffered + {ledger.get('in_flight', 0)} in flight + dropped ({dropped})"
    )


def counted(count: int, noun: str) -> str:
    """So many of them.

    >>> counted(1, "step"), counted(3, "step")
    ('1 step', '3 steps')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def counted_of(count: int, total: int, noun: str) -> str:
    """So many of so many.

    >>> counted_of(0, 1, "run"), counted_of(2, 3, "step"), counted_of(2, 0, "step")
    ('0 of 1 run', '2 of 3 steps', '2 steps')
    """
    return f"{count} of {counted(total, noun)}" if total else counted(count, noun)


def interval(low: float | None, high: float | None, runs: int) -> str:
    """As a table shows it.

    >>> interval(0.25, 0.5, 3), interval(None, None, 1), interval(None, None, 2)
    ('0.25 to 0.5', 'one run: none', 'all the same: none')
    """
    if low is None or high is None:
        return "one run: none" if runs == 1 else "all the same: none"
    return f"{low:.4g} to {high:.4g}"


def number(value: Any) -> str:
    """Four digits of a number; a whole one and anything else as it is.

    >>> number(0.123456), number(2**60), number("NaN"), number("ready")
    ('0.1235', '1152921504606846976', 'nan', 'ready')
    """
    if isinstance(value, int):
        return str(value)
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):
        return str(value)


def day(seconds: float, form: str) -> str:
    """When that was, in local time; what no calendar has is told as it is."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime(form)
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} seconds after 1970"


def written(content: Any) -> str:
    """What `--json` prints: every parser reads it, whatever a record holds."""
    return json.dumps(encode_numbers(content), indent=2, allow_nan=False)


def values_line(metrics: Mapping[str, Any]) -> str:
    return single_line("  ".join(f"{name} {number(value)}" for name, value in metrics.items()))


def values_of(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """One metric over the rows that have it; what stands for a NaN becomes one again, and so does what is no number."""
    found = (number_in(row[name]) for row in rows if row.get(name) is not None)
    return [math.nan if value is None else value for value in found]


def curve(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """One metric over the rows, as a line of blocks.

    >>> curve([{"loss": 3.0}, {"exact": 1.0}, {"loss": "NaN"}, {"loss": 1.0}], "loss")
    '█ ▁'
    """
    return sparkline(values_of(rows, name))
