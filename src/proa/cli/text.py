"""Text that the command line prints: samples, seconds, metrics, curves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..callbacks.console import sparkline
from ..record.run_folder import encode_numbers
from ..report.metrics import number_in
from ..report.text import duration, percent, ran
from ..visible import single_line

__all__ = [
    "STYLES", "count", "curve", "day", "duration", "interval", "json_text", "ledger_line", "metric_values",
    "metrics_line", "number", "percent", "progress", "ran",
]  # fmt: skip

STYLES = {
    "running": "bold cyan", "completed": "bold green", "cancelled": "bold yellow", "failed": "bold red",
    "healthy": "green", "dead": "red", "suspect": "yellow", "stale": "yellow", "restarting": "yellow",
}  # fmt: skip
"""Colours of the states of a run and of its actors."""


def ledger_line(ledger: Mapping[str, Any]) -> str:
    """Where every sample is, as a sum, without what is nothing.

    >>> ledger_line({"leased": 24, "trained": 16, "in_flight": 8})
    'samples: 24 leased = 16 trained + 8 in flight'
    """
    reasons = ledger.get("dropped")
    counts = reasons.items() if isinstance(reasons, Mapping) else ()
    dropped = ", ".join(f"{samples} {single_line(str(reason))}" for reason, samples in counts)
    parts = [
        f"{ledger.get('trained', 0)} trained",
        f"{ledger['buffered']} buffered" if ledger.get("buffered") else "",
        f"{ledger['in_flight']} in flight" if ledger.get("in_flight") else "",
        f"dropped ({dropped})" if dropped else "",
    ]
    return f"samples: {ledger.get('leased', 0)} leased = {' + '.join(filter(None, parts))}"


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "step"), count(3, "step")
    ('1 step', '3 steps')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def progress(done: int, total: int, noun: str) -> str:
    """How many are done, of how many where that is known.

    >>> progress(0, 1, "run"), progress(2, 3, "step"), progress(2, 0, "step")
    ('0 of 1 run', '2 of 3 steps', '2 steps')
    """
    return f"{done} of {count(total, noun)}" if total else count(done, noun)


def interval(low: float | None, high: float | None, runs: int) -> str:
    """A confidence interval as a table shows it.

    >>> interval(0.25, 0.5, 3), interval(None, None, 1), interval(None, None, 2)
    ('0.25 to 0.5', 'none: one run', 'none: all equal')
    """
    if low is None or high is None:
        return "none: one run" if runs == 1 else "none: all equal"
    return f"{low:.4g} to {high:.4g}"


def number(value: object) -> str:
    """A float with four digits, anything else unchanged.

    >>> number(0.123456), number(2**60), number("NaN"), number("ready")
    ('0.1235', '1152921504606846976', 'nan', 'ready')
    """
    if isinstance(value, float | str):
        try:
            return f"{float(value):.4g}"
        except ValueError:
            pass
    return str(value)


def day(seconds: float, form: str) -> str:
    """A time since the epoch as local time; seconds if no calendar has it."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime(form)
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} seconds after 1970"


def json_text(content: Any) -> str:
    """What `--json` prints: standard JSON, whatever a record holds."""
    return json.dumps(encode_numbers(content), indent=2, allow_nan=False)


def metrics_line(metrics: Mapping[str, object]) -> str:
    return single_line("  ".join(f"{name} {number(value)}" for name, value in metrics.items()))


def metric_values(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """The values of one metric, from the rows that have it; NaN where a value is not a number."""
    values = (number_in(row[name]) for row in rows if row.get(name) is not None)
    return [math.nan if value is None else value for value in values]


def curve(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """One metric over the rows, as a line of blocks.

    >>> curve([{"loss": 3.0}, {"exact": 1.0}, {"loss": "NaN"}, {"loss": 1.0}], "loss")
    '█ ▁'
    """
    return sparkline(metric_values(rows, name))
