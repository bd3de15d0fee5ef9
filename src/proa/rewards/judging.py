"""Has a function judge a batch so that a bad sample, a hang or a crash spoils no sample that is fine."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from .calling import CallFailed, Died, Lost, NotCalled, TimedOut, WrongAnswer
from .function import RewardFunction
from .long_calls import long_calls
from .samples import Samples
from .score import Outcome

MOST_LOSSES = 4
"""Samples of one batch on which a function may hang or crash before the rest of the batch is given up."""


class Caller(Protocol):
    """Makes calls somewhere: here, in a thread, in a worker process."""

    def prepare(self) -> None:
        """Get ready for a call; the time this takes is not the function's."""

    def call(self, function: RewardFunction, samples: Samples, seconds: float | None) -> list[Outcome]:
        """One outcome per sample, or `CallFailed`: after `seconds` at the latest."""


def judge(function: RewardFunction, samples: Samples, caller: Caller, seconds: float | None) -> list[Outcome]:
    """One outcome per sample, within twice the deadline.

    The whole batch is tried first. If that call raises, hangs or crashes, the samples are judged one by one, so that
    only the culprits are marked: none of them, if a worker was killed from outside. A function that answers with
    something else than one value per sample is not asked again: one value for four samples would pass as right for one.
    """
    try:
        caller.prepare()
        with long_calls.watching(function.name, len(samples), seconds):
            return caller.call(function, samples, seconds)
    except CallFailed as failure:
        if isinstance(failure, NotCalled | WrongAnswer) or (len(samples) == 1 and not isinstance(failure, Died)):
            return [Outcome(error=str(failure))] * len(samples)
    return _one_by_one(function, samples, caller, seconds)


def _one_by_one(function: RewardFunction, samples: Samples, caller: Caller, seconds: float | None) -> list[Outcome]:
    """A second deadline, shared: each sample may take half of what is left of it.

    With 30 s the first sample that hangs costs 15 s, the next 7.5 s; those that are fine cost next to nothing.
    """
    left, losses, outcomes = seconds, 0, []
    for index in range(len(samples)):
        if losses == MOST_LOSSES:
            words = f"not judged: reward {function.name!r} hung or crashed on {losses} other samples of the batch"
            outcomes.append(Outcome(error=words))
            continue
        began = monotonic()
        try:
            caller.prepare()
            began = monotonic()  # starting a worker is not the sample's time
            deadline = None if left is None else left / 2
            with long_calls.watching(function.name, 1, deadline):
                outcomes += caller.call(function, samples.one(index), deadline)
        except CallFailed as failure:
            losses += isinstance(failure, Lost | NotCalled)
            outcomes.append(Outcome(error=_told(failure, seconds)))
        if left is not None:
            left -= monotonic() - began
    return outcomes


def _told(failure: CallFailed, seconds: float | None) -> str:
    if isinstance(failure, TimedOut):
        return f"{failure} on its own, after its batch failed (which had {seconds} s)"
    return str(failure)
