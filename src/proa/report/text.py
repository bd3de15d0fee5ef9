"""Texts and numbers as a page shows them: short, and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..record.times import RunningTime
from ..statistics.formatting import duration as duration
from ..visible import visible as visible


def clipped(text: str, most: int) -> str:
    """The beginning of a long text, saying how much is left out.

    >>> clipped("abcdef", 4)
    'abcd… (2 more characters)'
    """
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]}… ({left:,} more characters)"


def squeezed(text: str, most: int) -> str:
    """A name that fits into so many characters, with both its ends: names that were put together differ in the last.

    >>> squeezed("learning_rate-0.0003__group_size-8", 17)
    'learning…p_size-8'
    """
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[-half:]}"


def ended(text: str, most: int) -> str:
    """A name that fits into so many characters.

    >>> ended("learning_rate-0.0003", 10)
    'learning_…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def number(value: Any) -> str:
    """Four digits of a number, with a true minus; a whole one exactly, anything else as it is.

    >>> number(-0.123456), number(2**53 + 1), number("NaN"), number(None)
    ('−0.1235', '9,007,199,254,740,993', 'NaN', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if abs(value) >= 10_000 and math.isfinite(value) and abs(value) < 1e15:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def percent(share: Any) -> str:
    """A share of the whole; what is not a number as it is.

    >>> percent(0.12345), percent(1), percent("unknown")
    ('12.3 %', '100.0 %', 'unknown')
    """
    return f"{100 * share:.1f} %" if isinstance(share, int | float) else str(share)


def shorts(values: Sequence[float]) -> list[str]:
    """The numbers at an axis, with as many digits as tell one from the next.

    >>> shorts([20_000, 1_500_000]), shorts([0.25, -2e-05]), shorts([20_001.0, 20_002.0])
    (['20k', '1.5M'], ['0.25', '−2e−05'], ['20.001k', '20.002k'])
    """
    for digits in range(4, 18):
        said = [_short(value, digits) for value in values]
        if len(set(said)) == len(set(values)):
            break
    return said


def _short(value: float, digits: int) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if unit <= abs(value) < unit * 1e6:
            return f"{value / (1e3 if letter == 'k' else unit):.{digits}g}{letter}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def ran(time: RunningTime | None) -> str:
    """How long a run went on; empty where that is not known.

    >>> ran(RunningTime(7200.0, is_approximate=False)), ran(RunningTime(60.0, is_approximate=True))
    ('2 h', 'about 60 s')
    """
    return "" if time is None else f"{'about ' if time.is_approximate else ''}{duration(time.seconds)}"


def moment(seconds: float) -> str:
    """When that was, in local time."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (OverflowError, ValueError, OSError):
        return f"{seconds} seconds after 1970"


def count(n: int, noun: str) -> str:
    """
    >>> count(1, "repeat"), count(2048, "row")
    ('1 repeat', '2,048 rows')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
