"""The score of a sample, from one function and from all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..data.reward_limits import fault_of

if TYPE_CHECKING:
    from .function import RewardFunction


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one function for one sample; neither value nor error means that it does not apply."""

    value: float | None = None
    error: str | None = None
    logged: Mapping[str, float | str] = field(default_factory=dict)
    """What the function logged of the sample."""


@dataclass(frozen=True, slots=True)
class Score:
    """A sample's reward. After a failure `value` is None and `error` says why: never a silent 0."""

    value: float | None
    parts: dict[str, float | None] = field(default_factory=dict)
    """The value of each function before its weight; None where it does not apply or failed."""
    error: str | None = None
    applies: bool = True
    """False where no function applies and none failed."""
    logged: dict[str, float | str] = field(default_factory=dict)
    """What the functions logged of the sample: numbers, which become metrics, and text."""


class Scorer(Protocol):
    """Scores samples: `InlineRewards` and `RewardWorkers` do, and so may an object of the user's own."""

    def score(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[Score]:
        """One score per sample, in their order; a completion is in the form of its prompt, text or messages."""
        ...


def add_part(scores: Sequence[Score], name: str, values: Sequence[float], weight: float) -> list[Score]:
    """Each score with one more part; a value that cannot be a reward is an error, as from a function.

    >>> add_part([Score(1.0, {"exact": 1.0})], "reward_model", [0.5], weight=2.0)
    [Score(value=2.0, parts={'exact': 1.0, 'reward_model': 0.5}, error=None, applies=True, logged={})]
    """
    pairs = zip(scores, values, strict=True)
    return [replace(_add_one(score, name, value, weight), logged=score.logged) for score, value in pairs]


def _add_one(score: Score, name: str, value: float, weight: float) -> Score:
    if fault := fault_of(value):
        errors = [score.error] if score.error else []
        return Score(None, {**score.parts, name: None}, "; ".join([*errors, f"{name} gave {value:g}, {fault}"]))
    parts = {**score.parts, name: value}
    if not score.applies:
        return _summed(weight * value, parts)
    return replace(score, parts=parts) if score.value is None else _summed(score.value + weight * value, parts)


def combine(functions: Sequence[RewardFunction], outcomes: Sequence[Sequence[Outcome]]) -> list[Score]:
    """One score per sample, from the outcomes of each function for all samples.

    The value is the weighted sum of the functions that apply: weights 1 and 0.5, values 1 and None, give 1.
    """
    return [
        replace(_combine_one(functions, sample), logged={k: v for outcome in sample for k, v in outcome.logged.items()})
        for sample in zip(*outcomes, strict=True)
    ]


def _combine_one(functions: Sequence[RewardFunction], outcomes: Sequence[Outcome]) -> Score:
    parts = {function.name: outcome.value for function, outcome in zip(functions, outcomes, strict=True)}
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if errors:
        return Score(None, parts, "; ".join(errors))
    applying = [function.weight * value for function in functions if (value := parts[function.name]) is not None]
    if not applying:
        error = f"no reward applies to this sample: {', '.join(parts)} gave None"
        return Score(None, parts, error, applies=False)
    return _summed(sum(applying), parts)


def _summed(total: float, parts: dict[str, float | None]) -> Score:
    if fault := fault_of(total):
        return Score(None, parts, f"the rewards with their weights add up to {total:g}, {fault}")
    return Score(total, parts)
