"""What an eval is: it takes a policy's weights as they are, and scores them, now or later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ..data.results import EvalResult


@dataclass(frozen=True, slots=True)
class At:
    """Where training stands: optimizer steps done, and the version of the weights."""

    steps: int
    version: int


@dataclass(frozen=True)
class Scored:
    """The outcome of an eval: its scores, and a row for every completion."""

    result: EvalResult
    predictions: list[dict[str, Any]]


class WeightsScoring(ABC):
    """One eval of weights that were taken."""

    @abstractmethod
    def score(self) -> Scored:
        """Score them, in any thread; training may have continued."""


class Eval(ABC):
    """One measure of a policy: a benchmark, or a function of the user's own."""

    @abstractmethod
    def begin(self, at: At) -> WeightsScoring:
        """Take the policy's weights as they are. It is gathered for that, which is collective."""

    def score(self, at: At) -> Scored:
        """The scores of the weights as they are."""
        return self.begin(at).score()
