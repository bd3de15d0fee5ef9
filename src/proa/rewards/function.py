"""Reward functions as users give them: callables or dotted paths, with TRL's signature.

    def reward(prompts, completions, **columns) -> list[float | None]

Each argument is a list with one entry per sample. A function that does not take `**columns` gets only what
it names. None in its answer means "does not apply to this sample". It may be `async`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..dotted import DottedPathError, resolve
from ..errors import SettingError
from ..spelling import did_you_mean
from .samples import Samples

GivenReward = Callable[..., Any] | str
"""A reward as a user gives it: anything callable, or the dotted path of it."""


class RewardError(SettingError):
    """Rewards cannot work as given."""


@dataclass(frozen=True)
class RewardFunction:
    """A user's function, with its name, its weight in the sum, and the arguments that it wants."""

    name: str
    function: Callable[..., Any]
    weight: float = 1.0
    path: str | None = None
    """The dotted path it came by, if it did."""
    wants: frozenset[str] = field(init=False, repr=False)
    """Parameters without a default."""
    knows: frozenset[str] | None = field(init=False, repr=False)
    """Parameters it has; None if it takes any."""

    def __post_init__(self) -> None:
        wants, knows = _parameters(self.function)
        object.__setattr__(self, "wants", wants)
        object.__setattr__(self, "knows", knows)

    @classmethod
    def of(cls, given: GivenReward | RewardFunction) -> RewardFunction:
        """Load one reward: a function, a class or object with `__call__`, a partial, or a dotted path."""
        if isinstance(given, RewardFunction):
            return given
        function, path = given, None
        if isinstance(given, str):
            path = given
            try:
                function = resolve(given)
            except DottedPathError as error:
                raise RewardError(f"reward {error}") from error
        if isinstance(function, type):
            function = _instance(function)
        if not callable(function):
            raise RewardError(f"{given!r} is no reward: give a function, or the path of one: 'package.module:function'")
        return cls(_name(function), function, path=path)

    def arguments(self, samples: Samples) -> dict[str, Any]:
        """What to call it with."""
        offered = {**samples.columns, "prompts": samples.prompts, "completions": samples.completions}
        if self.knows is None:
            return offered
        return {name: value for name, value in offered.items() if name in self.knows}

    def complaint(self, columns: Iterable[str]) -> str | None:
        """What it wants and would not get from a task with these columns, in words."""
        offered = {*columns, "prompts", "completions"}
        for name in sorted(self.wants - offered):
            return (
                f"reward {self.name!r} wants {name!r}{did_you_mean(name, offered)} "
                f"(it can have: {', '.join(sorted(offered))})"
            )
        return None


def load_rewards(
    rewards: GivenReward | RewardFunction | Sequence[GivenReward | RewardFunction],
    weights: Sequence[float] | None = None,
) -> list[RewardFunction]:
    """Load one reward or several, with their weights (1 each unless given); equal names are numbered.

    >>> [reward.name for reward in load_rewards([len, len, "math:floor"])]
    ['len', 'len_2', 'floor']
    """
    given = list(rewards) if isinstance(rewards, Sequence) and not isinstance(rewards, str) else [rewards]
    if not given:
        raise RewardError("no reward was given: at least one function is needed")
    functions = [RewardFunction.of(one) for one in given]
    if weights is not None:
        _check_weights(weights, len(functions))
        pairs = zip(functions, weights, strict=True)
        functions = [replace(function, weight=float(weight)) for function, weight in pairs]
    return _with_names_of_their_own(functions)


def check_columns(functions: Iterable[RewardFunction], columns: Iterable[str]) -> None:
    """Raise if a function wants a column that a task does not have: better before the run than in it."""
    names = list(columns)
    for function in functions:
        if (complaint := function.complaint(names)) is not None:
            raise RewardError(complaint)


def _check_weights(weights: Sequence[float], count: int) -> None:
    if len(weights) != count:
        raise RewardError(f"{count} rewards, but {len(weights)} weights: give one weight for each reward")
    for weight in weights:
        if not _is_finite(weight):
            raise RewardError(f"the weight of a reward must be a finite number, not {weight!r}")


def _is_finite(weight: object) -> bool:
    return isinstance(weight, int | float) and math.isfinite(weight)


def _with_names_of_their_own(functions: Iterable[RewardFunction]) -> list[RewardFunction]:
    named: dict[str, RewardFunction] = {}
    for function in functions:
        name, count = function.name, 1
        while name in named:
            count += 1
            name = f"{function.name}_{count}"
        named[name] = replace(function, name=name)
    return list(named.values())


def _instance(cls: type) -> Any:
    try:
        return cls()
    except Exception as error:
        raise RewardError(f"reward class {cls.__name__} cannot be made without arguments ({error}): make it") from error


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return "lambda" if name == "<lambda>" else str(name)


def _parameters(function: Callable[..., Any]) -> tuple[frozenset[str], frozenset[str] | None]:
    """Those without a default, and all (None: it takes any)."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # some callables written in C have none; calling them will tell
        return frozenset(), None
    named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    wants = frozenset(one.name for one in named if one.default is one.empty)
    return wants, None if takes_any else frozenset(one.name for one in named)
