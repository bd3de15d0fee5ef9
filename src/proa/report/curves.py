"""Curves of a million values as a few hundred points: peaks stay visible. A few repeats are a mean and a line for each,
more of them a mean with its interval."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..statistics.intervals import estimate

MOST_POINTS = 2000
"""Of one curve of one run."""
MOST_BAND_POINTS = 120
"""Of a mean over repeats."""
FEW_REPEATS = 4
"""Up to so many, each is drawn as a line: an interval of so few says more about their number than about the runs."""
EVERYWHERE = (-math.inf, math.inf)


class Series:
    """One metric over the steps of a run; what is written again for a step counts from there on."""

    __slots__ = ("steps", "values")

    def __init__(self) -> None:
        self.steps = array("q")
        self.values = array("d")

    def add(self, step: int, value: float) -> None:
        steps = self.steps
        while steps and steps[-1] >= step:  # the run was resumed from an earlier step
            steps.pop()
            self.values.pop()
        steps.append(step)
        self.values.append(value)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None


@dataclass(slots=True)
class Curve:
    """What is drawn for one arm. A value that is no number is a gap: NaN."""

    steps: list[int]
    values: list[float]
    low: list[float | None] = field(default_factory=list)
    """The band's lower edge, None where there is none; empty for few repeats and for a single run."""
    high: list[float | None] = field(default_factory=list)
    each: list[tuple[list[int], list[float]]] = field(default_factory=list)
    """Steps and values of every repeat, where they are few."""
    repeats: list[int] = field(default_factory=list)
    runs: int = 1
    every: int = 1
    """Steps that one point is the mean of."""
    points: int = 0
    """How many there were before it was thinned."""
    not_finite: int = 0
    first_not_finite: int | None = None


def thinned(steps: Sequence[int], values: Sequence[float], most: int = MOST_POINTS) -> tuple[list[int], list[float]]:
    """At most so many points, with the least and the greatest value of every stretch, and a gap where one was.

    >>> steps, values = thinned(range(1000), [float(step == 700) for step in range(1000)], most=50)
    >>> len(steps) <= 50, dict(zip(steps, values))[700]
    (True, 1.0)
    """
    total = len(steps)
    if total <= most:
        return list(steps), list(values)
    stretches = max(1, (most - 2) // 3)
    kept = {0, total - 1}
    for stretch in range(stretches):
        begin = stretch * total // stretches
        kept.update(begin + place for place in _telling(values[begin : (stretch + 1) * total // stretches]))
    places = sorted(kept)
    return [steps[place] for place in places], [values[place] for place in places]


def _telling(chunk: Sequence[float]) -> set[int]:
    """Where the least and the greatest value are, and the first that is no number."""
    if math.isfinite(sum(chunk)):
        return {chunk.index(min(chunk)), chunk.index(max(chunk))}
    finite = [place for place, value in enumerate(chunk) if math.isfinite(value)]
    gaps = [place for place, value in enumerate(chunk) if not math.isfinite(value)]
    extremes = {min(finite, key=chunk.__getitem__), max(finite, key=chunk.__getitem__)} if finite else set()
    return extremes | set(gaps[:1])


def curve_of(runs: Sequence[Series], within: tuple[float, float] = EVERYWHERE) -> Curve | None:
    """One run as it is, thinned; several as their mean with the 95 % t-interval, as far as that lies within what is
    possible, or with a line for each. None if nothing was measured."""
    runs = [run for run in runs if len(run)]
    if not runs:
        return None
    bad = [(step, value) for run in runs for step, value in _not_finite(run)]
    curve = _single(runs[0]) if len(runs) == 1 else _mean_of(runs, within)
    curve.points = max(map(len, runs))
    curve.not_finite = len(bad)
    curve.first_not_finite = min(bad)[0] if bad else None
    return curve


def _not_finite(run: Series) -> list[tuple[int, float]]:
    if math.isfinite(sum(run.values)):
        return []
    return [(step, value) for step, value in zip(run.steps, run.values, strict=True) if not math.isfinite(value)]


def _single(run: Series) -> Curve:
    steps, values = thinned(run.steps, run.values)
    return Curve(steps, [value if math.isfinite(value) else math.nan for value in values])


def _mean_of(runs: Sequence[Series], within: tuple[float, float]) -> Curve:
    """Stretches of equal length; in each the mean of every run, and of these the mean and the interval."""
    least, most = within
    first, last = min(run.steps[0] for run in runs), max(run.steps[-1] for run in runs)
    every = max(1, math.ceil((last - first + 1) / MOST_BAND_POINTS))
    means = [_stretch_means(run, first, every) for run in runs]
    curve = Curve([], [], runs=len(runs), every=every)
    for stretch in sorted(set().union(*means)):
        found = estimate([mean.get(stretch) for mean in means])
        curve.steps.append(min(last, first + stretch * every + (every - 1) // 2))
        curve.values.append(math.nan if found.mean is None else found.mean)
        curve.repeats.append(found.n)
        if len(runs) > FEW_REPEATS:
            equal = found.mean if found.n > 1 else None  # no interval, and no gap in the band
            curve.low.append(equal if found.low is None else max(least, found.low))
            curve.high.append(equal if found.high is None else min(most, found.high))
    if len(runs) <= FEW_REPEATS:
        curve.each = [(one.steps, one.values) for one in map(_single, runs)]
    return curve


def _stretch_means(run: Series, first: int, every: int) -> dict[int, float | None]:
    sums: dict[int, list[float]] = {}
    for step, value in zip(run.steps, run.values, strict=True):
        sums.setdefault((step - first) // every, []).append(value)
    means: dict[int, float | None] = {}
    for stretch, values in sums.items():
        finite = [value for value in values if math.isfinite(value)]
        means[stretch] = sum(finite) / len(finite) if finite else None
    return means
