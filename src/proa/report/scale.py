"""From values to places in a drawing: ranges, round ticks, coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from `low` to `high` on the places from `begin` to `end`; what lies outside is put on the edge."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """
        >>> Scale(0, 10, 100, 200).at(2.5), Scale(0, 10, 100, 200).at(99)
        (125.0, 200.0)
        """
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)


def range_of(values: Iterable[float], *, margin: float = 0.04) -> tuple[float, float]:
    """A range that holds all finite values, never empty, a little wider than they are.

    >>> range_of([1.0, 3.0, float("nan")], margin=0.0), range_of([]), range_of([0.0, 0.0], margin=0.0)
    ((1.0, 3.0), (0.0, 1.0), (0.0, 1.0))
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    # Within bounds that keep the range itself finite.
    low, high = max(min(*finite, 1e300), -1e300), min(max(*finite, -1e300), 1e300)
    if max(abs(low), abs(high)) <= 1e-280:
        low, high = 0.0, 1.0  # most of what can be nothing but 0 cannot be less
    elif high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high, margin = low - 0.1 * abs(low), high + 0.1 * abs(low), 0.0
    return low - margin * (high - low), high + margin * (high - low)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values within a range.

    >>> ticks(0.0, 1.0), ticks(-0.03, 0.047), ticks(1, 40)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-0.02, 0.0, 0.02, 0.04], [10.0, 20.0, 30.0, 40.0])
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(place * step, digits) + 0.0 for place in range(first, last + 1)]


def whole_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Those that are whole numbers: steps are counted.

    >>> whole_ticks(0.6, 1.4), whole_ticks(1, 3)
    ([1.0], [1.0, 2.0, 3.0])
    """
    return [tick for tick in ticks(low, high, most) if tick == int(tick)] or sorted({round(low), round(high)})
