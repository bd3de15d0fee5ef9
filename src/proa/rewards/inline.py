"""Rewards judged in the caller's own thread: for cheap functions that are trusted not to hang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..numerics import settings_kept
from .calling import call
from .function import GivenReward, RewardFunction, check_columns, load_rewards
from .judging import judge
from .samples import Samples
from .score import Outcome, Score, combine


class InlineRewards:
    """Scores like `RewardWorkers`, without processes and without a deadline.

    >>> InlineRewards(lambda completions: [len(text) for text in completions]).score(["a"], ["four"])[0].value
    4.0
    """

    def __init__(
        self,
        rewards: GivenReward | RewardFunction | Sequence[GivenReward | RewardFunction],
        *,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.functions = load_rewards(rewards, weights)

    def check(self, columns: Iterable[str]) -> None:
        """Raise `RewardError` if a function wants a column that is not among these."""
        check_columns(self.functions, columns)

    def score(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]] | None = None
    ) -> list[Score]:
        """One score per sample, in their order."""
        samples = Samples.of(prompts, completions, columns)
        if not len(samples):
            return []
        here = _Here()
        return combine(self.functions, [judge(function, samples, here, None) for function in self.functions])


class _Here:
    def prepare(self) -> None:
        pass

    def call(self, function: RewardFunction, samples: Samples, seconds: float | None) -> list[Outcome]:
        with settings_kept(f"reward {function.name!r}"):
            return call(function, samples)
