"""What rewards say of a sample: of one function, and of all together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .function import RewardFunction


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one function said of one sample; neither value nor error means that it does not apply."""

    value: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """A sample's reward. Where something went wrong `value` is None and `error` says what: never a silent 0."""

    value: float | None
    parts: dict[str, float | None] = field(default_factory=dict)
    """What each function gave, before its weight; None where it does not apply or failed."""
    error: str | None = None


def combine(functions: Sequence[RewardFunction], outcomes: Sequence[Sequence[Outcome]]) -> list[Score]:
    """One score per sample, from the outcomes of each function for all samples.

    The value is the weighted sum of the functions that apply: weights 1 and 0.5, values 1 and None, give 1.
    """
    return [_combine_one(functions, of_sample) for of_sample in zip(*outcomes, strict=True)]


def _combine_one(functions: Sequence[RewardFunction], outcomes: Sequence[Outcome]) -> Score:
    parts = {function.name: outcome.value for function, outcome in zip(functions, outcomes, strict=True)}
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if errors:
        return Score(None, parts, "; ".join(errors))
    applying = [function.weight * value for function in functions if (value := parts[function.name]) is not None]
    if not applying:
        return Score(None, parts, f"no reward applies to this sample: {', '.join(parts)} gave None")
    return Score(sum(applying), parts)
