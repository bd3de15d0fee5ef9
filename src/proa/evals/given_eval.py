"""Parts of an eval that are objects, where a configuration file could only name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..rewards.samples import RunLength
from ..roles.given_surroundings import NOTHING_GIVEN, GivenSurroundings


@dataclass(frozen=True)
class GivenEval:
    """What was given in Python for one eval, and what the run has for all of them; None where there is nothing."""

    evaluator: Callable[..., Any] | None = None
    source: Any = None
    """Data to evaluate on: rows, or a dataset."""
    metric: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None
    reward: Any = None
    """The run's own reward functions, for an eval that names no metric, on data that brings none."""
    weights: Sequence[float] | None = None
    """Of these."""
    length: RunLength | None = None
    """Of the run, for rewards that ask how far training is."""
    surroundings: GivenSurroundings = NOTHING_GIVEN
    """What answers the model between its turns, in training as in evals."""
