"""Calls one reward function on a batch, here and now, and reads its answer."""

from __future__ import annotations

import inspect
import numbers
import traceback
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from ..data.reward_limits import LARGEST, fault_of
from .function import RewardFunction
from .samples import Samples
from .score import Outcome

Finish = Callable[[Awaitable[Any]], Any]
"""Waits for what an async function returned."""


class CallFailed(Exception):  # noqa: N818 - it says what happened, and never reaches the user as an exception
    """A call as a whole gave nothing that can be used; the message says why."""


class Lost(CallFailed):
    """Whoever made the call hung or died."""


class TimedOut(Lost):
    """The call missed its deadline."""


class Died(Lost):
    """Whoever made the call died: perhaps of it, perhaps killed from outside."""


class NotCalled(CallFailed):
    """It did not come to a call, so no sample is to blame."""


class WrongAnswer(CallFailed):
    """The function answered, but not with one value per sample: that is the function's mistake, not a sample's."""


def call(function: RewardFunction, samples: Samples, finish: Finish | None = None) -> list[Outcome]:
    """One outcome per sample. A bad value marks its sample; a bad call raises `CallFailed`."""
    if (complaint := function.complaint(samples.columns)) is not None:
        raise NotCalled(complaint)
    try:
        answer = function.function(**function.arguments(samples))
        if inspect.isawaitable(answer):
            answer = (finish or run_to_end)(answer)
        values = _values(answer, len(samples))
    except KeyboardInterrupt:
        raise
    except WrongAnswer as wrong:
        raise WrongAnswer(f"reward {function.name!r} {wrong}") from None
    except BaseException as error:  # sys.exit() and some time-out libraries raise no Exception
        raise CallFailed(f"reward {function.name!r} raised {_told(error)}") from error
    return [_outcome(function.name, value) for value in values]


def run_to_end(awaitable: Awaitable[Any]) -> Any:
    """Wait for an awaitable, also where an event loop is running already (a notebook)."""
    import asyncio  # costs a worker's start 40 ms, and few rewards need it
    from concurrent.futures import ThreadPoolExecutor

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(asyncio.run, wait()).result()


def _values(answer: Any, count: int) -> list[Any]:
    listlike = not isinstance(answer, str | bytes | Mapping | AbstractSet)
    try:
        values = list(answer) if listlike else None
    except TypeError:  # not iterable, or a tensor without dimensions
        values = None
    if values is None:
        hint = " (is a `return` missing?)" if answer is None else ""
        raise WrongAnswer(f"returned {_short(answer)}, not a list with one number per sample{hint}")
    if len(values) != count:
        words = f"returned {_counted(len(values), 'value')} for {_counted(count, 'sample')}"
        raise WrongAnswer(f"{words}: return a list with one number per sample, None where it does not apply")
    return values


def _outcome(name: str, value: Any) -> Outcome:
    if value is None:
        return Outcome()
    try:
        number = _number(value)
    except OverflowError:  # a whole number that no float is as large as
        return Outcome(error=f"reward {name!r} gave a whole number {fault_of(2 * LARGEST)}")
    except Exception:  # whatever a stranger's __float__ raises, the value is no number
        return Outcome(error=f"reward {name!r} gave {_short(value)}, which is no number")
    if fault := fault_of(number):
        return Outcome(error=f"reward {name!r} gave {number:g}, {fault}")
    return Outcome(number)


def _number(value: Any) -> float:
    if hasattr(value, "item"):  # numpy and torch scalars; larger arrays raise
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise TypeError
    return float(value)


def _told(error: BaseException) -> str:
    """An exception with the place in the user's code: `ValueError: boom (rewards.py, line 12)`."""
    words = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is our call of it
    return f"{words} ({frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno})" if frames else words


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # a stranger's __repr__, or a whole number too long for Python to write
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
