"""Calls a function on a batch so that a bad sample, a hang or a crash does not affect other samples."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from .calling import CallFailed, CallSkipped, Died, Lost, TimedOut, WrongAnswer
from .function import RewardFunction
from .long_calls import long_calls
from .samples import Samples
from .score import Outcome

MAX_LOSSES = 4
"""On how many samples of a batch a function may hang or crash before the rest is given up."""


class Caller(Protocol):
    """Makes calls: directly, in a thread or in a worker process."""

    def prepare(self) -> None:
        """Get ready for a call, outside the function's deadline."""

    def call(self, function: RewardFunction, samples: Samples, seconds: float | None) -> list[Outcome]:
        """One outcome per sample, or `CallFailed`, within `seconds`."""


def judge(function: RewardFunction, samples: Samples, caller: Caller, seconds: float | None) -> list[Outcome]:
    """One outcome per sample, within twice the deadline.

    The whole batch is tried first. If that call raises, hangs or crashes, the samples are judged singly, so that only
    those at fault are marked: none, if a worker was killed from outside. A function that does not return one value per
    sample is not called again: its one value for four samples would look right for a single one.
    """
    try:
        caller.prepare()
        with long_calls.watching(function.name, len(samples), seconds):
            return caller.call(function, samples, seconds)
    except CallFailed as failure:
        if isinstance(failure, CallSkipped | WrongAnswer) or (len(samples) == 1 and not isinstance(failure, Died)):
            return [Outcome(error=str(failure))] * len(samples)
    return _judge_singly(function, samples, caller, seconds)


def _judge_singly(function: RewardFunction, samples: Samples, caller: Caller, seconds: float | None) -> list[Outcome]:
    """All samples share a second deadline; each may take half of what is left of it.

    With 30 s the first sample that hangs costs 15 s, the next 7.5 s; others cost next to nothing.
    """
    left, losses, outcomes = seconds, 0, []
    for index in range(len(samples)):
        if losses == MAX_LOSSES:
            error = f"not judged: reward {function.name!r} hung or crashed on {losses} other samples of the batch"
            outcomes.append(Outcome(error=error))
            continue
        began = monotonic()
        try:
            caller.prepare()
            began = monotonic()  # without the start of a worker
            deadline = None if left is None else left / 2
            with long_calls.watching(function.name, 1, deadline):
                outcomes += caller.call(function, samples.one(index), deadline)
        except CallFailed as failure:
            losses += isinstance(failure, Lost | CallSkipped)
            alone = f" on its own, after its batch failed (which had {seconds} s)"
            outcomes.append(Outcome(error=f"{failure}{alone if isinstance(failure, TimedOut) else ''}"))
        if left is not None:
            left -= monotonic() - began
    return outcomes
