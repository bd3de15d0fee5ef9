"""Arms ranked by their mean; ties have no winner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .comparison import Mode, check_mode
from .intervals import Estimate, finite


@dataclass(frozen=True, slots=True)
class Best:
    """The arms with the best mean (several: a tie), all ranked arms best first, and those without a value.

    The best mean does not prove the best arm: `compare` says whether it may be chance.
    """

    arms: tuple[str, ...]
    score: float | None
    ranked: tuple[str, ...]
    unranked: tuple[str, ...]

    @property
    def arm(self) -> str | None:
        """The best arm; None where several are equal or none has a value."""
        return self.arms[0] if len(self.arms) == 1 else None


def rank_arms(estimates: Mapping[str, Estimate | None], mode: Mode = "max") -> Best:
    """Arms by their mean; equals by name. An arm that failed (None) or has no mean is listed, not ranked.

    >>> one, two = Estimate(0.5, None, None, 1), Estimate(0.7, None, None, 1)
    >>> rank_arms({"a": one, "b": two, "c": None})
    Best(arms=('b',), score=0.7, ranked=('b', 'a'), unranked=('c',))
    >>> rank_arms({"a": one, "b": two, "c": one}, "min").arms
    ('a', 'c')
    """
    check_mode(mode)
    means = {
        name: mean for name, one in estimates.items() if one is not None and (mean := finite(one.mean)) is not None
    }
    sign = -1 if mode == "max" else 1
    ranked = tuple(sorted(means, key=lambda name: (sign * means[name], name)))
    unranked = tuple(sorted(estimates.keys() - means.keys()))
    if not ranked:
        return Best((), None, (), unranked)
    score = means[ranked[0]]
    # Sums of the same scores in another order differ in the last bits: that is a tie, not a winner.
    arms = sorted(name for name in ranked if math.isclose(means[name], score, rel_tol=1e-9, abs_tol=1e-12))
    return Best(tuple(arms), score, ranked, unranked)
