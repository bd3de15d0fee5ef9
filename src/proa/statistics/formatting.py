"""Numbers, counts and intervals as text."""

from __future__ import annotations


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
