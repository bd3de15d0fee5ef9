"""Rewards computed in the caller's thread: for cheap functions that are trusted not to hang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..data.messages import Messages
from ..numerics import preserved_settings
from .calling import call
from .function import GivenReward, RewardFunction, check_columns, load_rewards
from .judging import judge
from .samples import RunLength, Samples
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
        length: RunLength | None = None,
    ) -> None:
        self.functions = load_rewards(rewards, weights)
        self._length = length

    def check(self, columns: Iterable[str]) -> None:
        """Raise `RewardError` if a function needs a column that is not among these."""
        check_columns(self.functions, columns, has_trainer=self._length is not None)

    def score(
        self,
        prompts: Sequence[str | Messages],
        completions: Sequence[str | Messages],
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[Score]:
        """One score per sample, in their order."""
        samples = Samples.collect(prompts, completions, columns, self._length)
        if not len(samples):
            return []
        caller = _DirectCaller()
        return combine(self.functions, [judge(function, samples, caller, None) for function in self.functions])


class _DirectCaller:
    def prepare(self) -> None:
        pass

    def call(self, function: RewardFunction, samples: Samples, seconds: float | None) -> list[Outcome]:
        with preserved_settings(f"reward {function.name!r}"):
            return call(function, samples)
