"""Numbers, counts, intervals and durations as text."""

from __future__ import annotations

import math


def number(value: float | None) -> str:
    """Three digits, a true minus sign.

    >>> number(-0.12345), number(1234.5), number(None)
    ('−0.123', '1.23e+03', 'no value')
    """
    return "no value" if value is None else f"{value:.3g}".replace("-", "−")


def count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def interval(low: float | None, high: float | None, level: float) -> str:
    return f"{100 * level:.3g} % interval {number(low)} to {number(high)}"


def duration(seconds: float) -> str:
    """As exact as anyone wants to know.

    >>> [duration(n) for n in (0.44, 45.2, 200, 7200, 9000, 200_000)]
    ['0.4 s', '45 s', '3 min', '2 h', '2 h 30 min', '2 d 7 h']
    """
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if minutes < 120:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"
