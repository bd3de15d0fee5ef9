"""Moments that the driver listens to: the trainer asks, the driver answers, and neither waits without a deadline.

Callbacks of the run live in the driver, which is no actor and cannot be called. So it comes and takes what there is
(`take`), calls its listeners, and answers (`answer`), while the trainer that fired the moment waits (`ask`).
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...data.state import LoopState
from ...lifecycle.hooks import EveryMoment
from ...lifecycle.moments import MOMENTS, EventName, Scope
from ...roles.waiting import WaitTimeoutError


@dataclass(frozen=True, slots=True)
class Question:
    """A moment on its way to the driver, and the number that its answer will have."""

    number: int
    event: EventName
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the driver's listeners did."""

    stop_reason: str | None = None
    stopped_by: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    """Entries of `state.metrics` that they changed."""
    error: BaseException | None = None


class Mailbox:
    """Questions to the driver, and its answers; lives with trainer rank 0."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._condition = threading.Condition()
        self._questions: deque[Question] = deque()
        self._answers: dict[int, Answer] = {}
        self._numbers = itertools.count(1)

    def ask(self, event: EventName, payload: dict[str, Any]) -> Answer:
        """Have the driver hear a moment, and wait until it has."""
        with self._condition:
            number = next(self._numbers)
            self._questions.append(Question(number, event, payload))
            self._condition.notify_all()
            if not self._condition.wait_for(lambda: number in self._answers, self._patience):
                raise WaitTimeoutError(f"the driver did not answer to {event!r} within {self._patience:g} s")
            return self._answers.pop(number)

    def take(self, seconds: float) -> list[Question]:
        """What is there for the driver, waiting that long for the first."""
        with self._condition:
            self._condition.wait_for(lambda: bool(self._questions), seconds)
            taken = list(self._questions)
            self._questions.clear()
            return taken

    def answer(self, number: int, answer: Answer) -> None:
        with self._condition:
            self._answers[number] = answer
            self._condition.notify_all()


@dataclass(frozen=True, slots=True)
class Interests:
    """Which moments the driver's listeners want, and which items of them that are costly to send."""

    events: frozenset[str]
    costly: frozenset[tuple[str, str]]

    def lighten(self, event: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The payload as it travels: the state as plain values, and nothing large that nobody reads."""
        light: dict[str, Any] = {}
        for name, value in payload.items():
            if name in COSTLY and (event, name) not in self.costly:
                light[name] = None
            else:
                light[name] = value.to_dict() if isinstance(value, LoopState) else value
        return light


COSTLY = ("experience", "batch")


class ToRemoteDriver(EveryMoment):
    """Takes the moments of one actor to the driver, if somebody there listens."""

    uses_asyncio = False
    thread_safe = True

    def __init__(self, mailbox: Mailbox, interests: Interests) -> None:
        self._mailbox = mailbox
        self._interests = interests

    def on_moment(self, event: EventName, payload: Mapping[str, Any]) -> None:
        if event not in self._interests.events or MOMENTS[event].scope is Scope.MAKER:
            return
        answer = self._mailbox.ask(event, self._interests.lighten(event, payload))
        state = payload.get("state")
        if isinstance(state, LoopState):
            _apply(answer, state)
        if answer.error is not None:
            raise answer.error


def _apply(answer: Answer, state: LoopState) -> None:
    state.metrics.update(answer.metrics)
    if answer.stop_reason is not None:
        state.stop_training(answer.stop_reason, by=answer.stopped_by)
