"""The mean over repeats and its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import SettingError

NOISE = 1e-9
"""Scores are equal below this, relative to the largest of them: 0.1 + 0.2 is 0.3."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` repeats with its interval; what is unknown is None.

    `missing` repeats had no number: None, NaN or infinite. They are left out, so a mean over few of many repeats
    is a mean of those that survived.
    """

    mean: float | None
    low: float | None
    high: float | None
    n: int
    missing: int = 0
    level: float = 0.95
    deviation: float | None = None


def estimate(values: Iterable[float | None], level: float = 0.95) -> Estimate:
    """The mean and Student's t-interval: mean ± t(n−1) · s / √n, with s of ddof 1.

    Assumes that repeats are independent and roughly normal. One repeat has a mean and no interval; none has neither.
    Equal repeats have no interval either: one of width zero would claim certainty.

    >>> found = estimate([1.0, 2.0, 3.0, None])
    >>> found.mean, round(found.low, 3), round(found.high, 3), found.n, found.missing
    (2.0, -0.484, 4.484, 3, 1)
    >>> estimate([0.5])
    Estimate(mean=0.5, low=None, high=None, n=1, missing=0, level=0.95, deviation=None)
    """
    check_level(level)
    given = list(values)
    numbers = [number for value in given if (number := finite(value)) is not None]
    n, missing = len(numbers), len(given) - len(numbers)
    if n == 0:
        return Estimate(None, None, None, 0, missing, level)
    # Equal repeats have no spread at all: their mean is exact, where sum and division may round.
    mean = numbers[0] if min(numbers) == max(numbers) else math.fsum(numbers) / n
    if n == 1:
        return Estimate(mean, None, None, 1, missing, level)
    deviation = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / (n - 1))
    if max(numbers) - min(numbers) <= NOISE * max(map(abs, numbers)):
        return Estimate(mean, None, None, n, missing, level, deviation)
    half = student_t(n - 1, level) * deviation / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n, missing, level, deviation)


def student_t(freedom: int, level: float) -> float:
    """Student's t with `freedom` degrees of freedom is within ± this with probability `level`.

    >>> round(student_t(2, 0.95), 3)
    4.303
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(freedom, (1 + level) / 2))


def finite(value: float | None) -> float | None:
    """The value as a float; None for None, NaN and infinities."""
    return float(value) if value is not None and math.isfinite(value) else None


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise SettingError(f"level must be between 0 and 1, e.g. 0.95; it is {level!r}")
