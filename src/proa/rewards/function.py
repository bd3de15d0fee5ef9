"""Reward functions from users: callables or dotted paths, with TRL's signature.

    def reward(prompts, completions, **columns) -> list[float | None]

Each argument is a list with one entry per sample. A function without `**columns` gets only the arguments it names.
None in its result means "does not apply to this sample". It may be `async`. Besides the task's columns there are the
tokens, `prompt_ids` and `completion_ids`, and `policy_version`, that of the weights which sampled. One that names
`log_metric` or `log_extra` is given a function to log with: `log_metric(name, number)`, `log_extra(column, values)`;
`trainer_state` is how far training was when the weights that sampled were published.
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
from .logged import LOGGERS, CallLog
from .samples import SAMPLED, TRAINER_STATE, Samples

GivenReward = Callable[..., Any] | str
"""A reward from a user: a callable or its dotted path."""


class RewardError(SettingError):
    """Rewards cannot be used as given."""


@dataclass(frozen=True)
class RewardFunction:
    """A user's function with its name, its weight in the sum and its parameters."""

    name: str
    function: Callable[..., Any]
    weight: float = 1.0
    path: str | None = None
    """The dotted path it was given by, if any."""
    required: frozenset[str] = field(init=False, repr=False)
    """Parameters without a default."""
    named: frozenset[str] = field(init=False, repr=False)
    """All parameters but `**columns`."""
    takes_any: bool = field(init=False, repr=False)
    """Whether it takes `**columns`."""

    def __post_init__(self) -> None:
        required, named, takes_any = _parameters(self.function)
        object.__setattr__(self, "required", required)
        object.__setattr__(self, "named", named)
        object.__setattr__(self, "takes_any", takes_any)

    @classmethod
    def load(cls, given: GivenReward | RewardFunction) -> RewardFunction:
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
            try:
                function = function()
            except Exception as error:
                raise RewardError(
                    f"reward class {function.__name__} cannot be created without arguments ({error}): give an instance"
                ) from error
        if not callable(function):
            raise RewardError(f"{given!r} is not a reward: give a function or its path, 'package.module:function'")
        return cls(_name(function), function, path=path)

    def arguments(self, samples: Samples, log: CallLog) -> dict[str, Any]:
        """The keyword arguments for a call, which logs to `log`."""
        offered = {**samples.columns, "prompts": samples.prompts, "completions": samples.completions}
        given = {name: value for name, value in offered.items() if self.takes_any or name in self.named}
        # Only by name: what arrives in `**columns` is a list with one entry per sample.
        beside = {name: getattr(log, name) for name in LOGGERS} | {TRAINER_STATE: samples.trainer}
        return given | {name: one for name, one in beside.items() if name in self.named and name not in offered}

    def complaint(self, columns: Iterable[str]) -> str | None:
        """An error message if a required parameter is not among these columns."""
        offered = {*columns, "prompts", "completions", *LOGGERS}
        for name in sorted(self.required - offered):
            if name == TRAINER_STATE:
                return f"reward {self.name!r} needs 'trainer_state', and there is no run here that would have one"
            return (
                f"reward {self.name!r} needs {name!r}, which the task does not have{did_you_mean(name, offered)} "
                f"(available: {', '.join(sorted(offered))})"
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
    functions = [RewardFunction.load(one) for one in given]
    if weights is not None:
        if len(weights) != len(functions):
            raise RewardError(f"{len(functions)} rewards, but {len(weights)} weights: give one weight for each reward")
        for weight in weights:
            if not (isinstance(weight, int | float) and math.isfinite(weight)):
                raise RewardError(f"the weight of a reward must be a finite number, not {weight!r}")
        pairs = zip(functions, weights, strict=True)
        functions = [replace(function, weight=float(weight)) for function, weight in pairs]
    return _unique_names(functions)


def check_columns(functions: Iterable[RewardFunction], columns: Iterable[str], *, has_trainer: bool = False) -> None:
    """Raise if a function needs a column that the task does not have: before the run, not during it."""
    names = [*columns, *SAMPLED, *([TRAINER_STATE] if has_trainer else [])]
    for function in functions:
        if (complaint := function.complaint(names)) is not None:
            raise RewardError(complaint)


def _unique_names(functions: Iterable[RewardFunction]) -> list[RewardFunction]:
    named: dict[str, RewardFunction] = {}
    for function in functions:
        name, count = function.name, 1
        while name in named:
            count += 1
            name = f"{function.name}_{count}"
        named[name] = replace(function, name=name)
    return list(named.values())


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return "lambda" if name == "<lambda>" else str(name)


def _parameters(function: Callable[..., Any]) -> tuple[frozenset[str], frozenset[str], bool]:
    """The required parameters, all of them, and whether it takes `**columns`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # some callables written in C have no signature
        return frozenset(), frozenset(), True
    named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    required = frozenset(one.name for one in named if one.default is one.empty)
    return required, frozenset(one.name for one in named), takes_any
