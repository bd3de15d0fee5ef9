"""Sends moments from actors to the driver's listeners: actors ask, the driver answers, and every wait has a deadline.

Callbacks of the run live in the driver, which is not an actor and cannot be called. So it fetches the open questions,
calls its listeners, and brings the answers when it fetches the next ones (`exchange`), while the actor that fired the
moment waits (`ask`). A question is kept until it is answered, and an answer until the next question, so that lost calls
lose nothing.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import torch

from ...actors.waiting import WaitTimeoutError
from ...data.experience import Experience
from ...data.loop import TrainingBatch
from ...data.state import LoopState
from ...lifecycle.hooks import EveryMoment
from ...lifecycle.moments import MOMENTS, EventName, Scope
from ...lifecycle.policy import Priority
from .calls import portable

Key: TypeAlias = tuple[str, int]
"""The asking actor, and the number of the question."""


@dataclass(frozen=True, slots=True)
class Question:
    """A moment on its way to the driver."""

    key: Key
    event: str
    """The name of a moment, or of a service of the driver."""
    payload: dict[str, Any]


class Changes(NamedTuple):
    """Values of a maker's experience that hooks in the driver may have changed."""

    reward: torch.Tensor
    action_mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of calling the driver's listeners, or a service of the driver."""

    stop_reason: str | None = None
    stopped_by: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    """Entries of `state.metrics` that listeners changed."""
    step_metrics: dict[str, Any] = field(default_factory=dict)
    """Entries of the step's own metrics that listeners changed."""
    logged: dict[str, Any] = field(default_factory=dict)
    """Metrics that listeners logged: for a trainer already written, for a maker to go with its next delivery."""
    error: BaseException | None = None
    value: Any = None
    """The result of the service; or `Changes`."""


class Mailbox:
    """Questions to the driver, and its answers; lives with trainer rank 0. Each actor asks one question at a time."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._open: dict[Key, Question] = {}
        self._answered: dict[str, tuple[int, Answer]] = {}  # the last answer to each asker
        self._dismissed: set[str] = set()

    def ask(self, question: Question, seconds: float) -> Answer | None:
        """The driver's answer, or None after `seconds`. Repeating a question changes nothing.

        A call that is repeated after its answer was received and the next question asked is ignored.
        """
        asker, ticket = question.key
        with self._condition:
            if ticket > self._last_answered(asker) and asker not in self._dismissed:
                self._open.setdefault(question.key, question)
                self._condition.notify_all()
            self._condition.wait_for(
                lambda: ticket <= self._last_answered(asker) or asker in self._dismissed, seconds
            )  # fmt: skip
            if asker in self._dismissed:
                return Answer()
            return self._answered[asker][1] if ticket == self._last_answered(asker) else None

    def exchange(self, answers: Mapping[Key, Answer], seconds: float) -> list[Question]:
        """Take the driver's answers and return the open questions, waiting up to `seconds` for the first."""
        with self._condition:
            for (asker, ticket), answer in answers.items():
                if self._open.pop((asker, ticket), None) is not None and ticket > self._last_answered(asker):
                    self._answered[asker] = (ticket, answer)
            self._condition.notify_all()
            self._condition.wait_for(lambda: bool(self._open), seconds)
            return list(self._open.values())

    def dismiss(self, asker: str) -> None:
        """Forget an actor that is gone, with its questions and answers, which may hold a batch."""
        with self._condition:
            self._dismissed.add(asker)
            self._answered.pop(asker, None)
            self._open = {key: question for key, question in self._open.items() if key[0] != asker}
            self._condition.notify_all()

    def _last_answered(self, asker: str) -> int:
        """The number of the asker's last answered question."""
        return self._answered[asker][0] if asker in self._answered else 0


@dataclass(frozen=True, slots=True)
class Interests:
    """The moments that the driver's listeners want, and the costly items among those that they read."""

    events: frozenset[str]
    costly: frozenset[tuple[str, str]]

    def within(self, scope: Scope) -> Interests:
        """The interests in moments of one scope."""
        return Interests(frozenset(event for event in self.events if MOMENTS[event].scope is scope), self.costly)

    def lighten(self, event: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The payload to send: the state as plain values, without costly items that are not read."""
        sent = dict(payload)
        moved: dict[int, Experience] = {}  # batch and experience share one, which is sent once
        for name, value in payload.items():
            if name == "gradients" or (name in COSTLY and (event, name) not in self.costly):
                sent[name] = None
            elif isinstance(value, Experience):
                sent[name] = moved.setdefault(id(value), value.on_cpu())
            elif isinstance(value, TrainingBatch) and isinstance(value.data, Experience):
                sent[name] = replace(value, data=moved.setdefault(id(value.data), value.data.on_cpu()))
            elif isinstance(value, BaseException):
                sent[name] = portable(value)
            elif isinstance(value, LoopState):
                sent[name] = value.to_dict()
        return sent


COSTLY = ("experience", "batch")


class DriverLink(EveryMoment):
    """Sends the moments of one actor to the driver, if listeners there want them."""

    priority = Priority.RECORD  # the run's record is at its other end
    uses_asyncio = False
    thread_safe = True
    forwards = True
    unread = frozenset({"gradients"})

    def __init__(
        self, asker: str, interests: Interests, ask: Callable[[Question, float], Answer | None], patience: float
    ) -> None:
        self._asker = asker
        self._interests = interests
        self._ask = ask
        self._patience = patience
        self._tickets = itertools.count(1)
        self._asking = threading.Lock()

    def on_moment(self, event: EventName, payload: Mapping[str, Any]) -> None:
        if event not in self._interests.events:
            return
        with self._asking:
            key = (self._asker, next(self._tickets))
            answer = self._ask(Question(key, event, self._interests.lighten(event, payload)), self._patience)
        if answer is None:
            raise WaitTimeoutError(f"the driver did not answer to {event!r} within {self._patience:g} s")
        state = payload.get("state")
        if isinstance(state, LoopState):
            state.metrics.update(answer.metrics)
            state.logged.update(answer.logged)
            if MOMENTS[event].scope is Scope.MAKER:
                state.add_logged(answer.logged)
            if answer.step_metrics:
                payload["metrics"].update(answer.step_metrics)
            if answer.stop_reason is not None:
                state.stop_training(answer.stop_reason, by=answer.stopped_by)
        if isinstance(answer.value, Changes) and payload.get("experience") is not None:
            payload["experience"].reward, payload["experience"].action_mask = answer.value
        if answer.error is not None:
            raise answer.error


class AskDriver:
    """Calls a service of the driver by its name; the driver is not an actor and cannot be called directly."""

    def __init__(self, asker: str, ask: Callable[[Question, float], Answer | None], patience: float) -> None:
        self._asker = f"{asker} asks"
        self._ask = ask
        self._patience = patience
        self._tickets = itertools.count(1)
        self._asking = threading.Lock()

    def __call__(self, service: str, *arguments: Any) -> Any:
        with self._asking:
            key = (self._asker, next(self._tickets))
            answer = self._ask(Question(key, service, {"arguments": arguments}), self._patience)
        if answer is None:
            raise WaitTimeoutError(f"the driver did not answer to {service!r} within {self._patience:g} s")
        if answer.error is not None:
            raise answer.error
        return answer.value
