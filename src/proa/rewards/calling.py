"""Calls one reward function on a batch and checks its answer."""

from __future__ import annotations

import inspect
import numbers
import traceback
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from ..data.reward_limits import fault_of
from .function import RewardFunction
from .logged import CallLog
from .samples import Samples
from .score import Outcome

Finish = Callable[[Awaitable[Any]], Any]
"""Waits for the result of an async function."""


class CallFailed(Exception):  # noqa: N818 - never reaches the user as an exception
    """The call of a reward function failed for the whole batch; the message says why."""


class Lost(CallFailed):
    """The thread or process that made the call hung or died."""


class TimedOut(Lost):
    """The call missed its deadline."""


class Died(Lost):
    """The process that made the call died: because of the call, or killed from outside."""


class CallSkipped(CallFailed):
    """The function was not called, so no sample is at fault."""


class WrongAnswer(CallFailed):
    """The function did not return one value per sample: a mistake of the function, not of a sample."""


def call(function: RewardFunction, samples: Samples, finish: Finish | None = None) -> list[Outcome]:
    """One outcome per sample. A bad value marks its sample; a bad call raises `CallFailed`."""
    if (complaint := function.complaint(samples.offered)) is not None:
        raise CallSkipped(complaint)
    log = CallLog(len(samples))
    try:
        answer = function.function(**function.arguments(samples, log))
        if inspect.isawaitable(answer):
            answer = (finish or await_result)(answer)
        values = _values(answer, len(samples))
    except KeyboardInterrupt:
        raise
    except WrongAnswer as wrong:
        raise WrongAnswer(f"reward {function.name!r} {wrong}") from None
    except BaseException as error:  # sys.exit() and some timeout libraries raise BaseExceptions
        message = "".join(traceback.format_exception_only(error)).strip()
        if frames := traceback.extract_tb(error.__traceback__)[1:]:  # the first frame is our call
            message += f" ({frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno})"
        raise CallFailed(f"reward {function.name!r} raised {message}") from error
    outcomes = [_outcome(function.name, value) for value in values]
    return [replace(one, logged=log.values_of(index)) for index, one in enumerate(outcomes)]


def await_result(awaitable: Awaitable[Any]) -> Any:
    """Wait for an awaitable, also where an event loop is already running (a notebook)."""
    import asyncio  # takes 40 ms, and few rewards need it
    from concurrent.futures import ThreadPoolExecutor

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, wait()).result()


def _values(answer: Any, count: int) -> list[object]:
    is_sequence = not isinstance(answer, str | bytes | Mapping | AbstractSet)
    try:
        values: list[object] | None = list(answer) if is_sequence else None
    except TypeError:  # not iterable, or a tensor without dimensions
        values = None
    if values is None:
        hint = " (is a `return` missing?)" if answer is None else ""
        raise WrongAnswer(f"returned {_short(answer)}, not a list with one number per sample{hint}")
    if len(values) != count:
        counts = f"{len(values)} value{'s' * (len(values) != 1)} for {count} sample{'s' * (count != 1)}"
        raise WrongAnswer(f"returned {counts}: return a list with one number per sample, None where it does not apply")
    return values


def _outcome(name: str, value: object) -> Outcome:
    if value is None:
        return Outcome()
    try:
        number = value.item() if hasattr(value, "item") else value  # numpy and torch scalars; larger arrays raise
        if not isinstance(number, numbers.Real):
            raise TypeError
        number = float(number)
    except Exception:  # a user's __float__ may raise anything
        return Outcome(error=f"reward {name!r} gave {_short(value)}, which is not a number")
    if fault := fault_of(number):
        return Outcome(error=f"reward {name!r} gave {number:g}, {fault}")
    return Outcome(number)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # a user's __repr__ may raise anything
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
