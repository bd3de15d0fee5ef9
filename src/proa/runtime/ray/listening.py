"""The run's callbacks in the driver, called for moments of actors as if these were local."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

from ...data.state import LoopState
from ...lifecycle.current import logging_to
from ...lifecycle.failures import note_failure
from ...lifecycle.logged import LoggedMetrics, changed_entries
from ...lifecycle.manager import CallbackManager
from ...lifecycle.moments import MOMENTS, EventName, Scope
from .calls import portable
from .link import COSTLY, Answer, Changes, Interests, Key, Question

FOLLOWED = ("step_end", "eval_end", "checkpoint_saved", "update_end", "epoch_end", "episode_end", "train_end")
"""Moments after which logged metrics are written as a further row; others go into the next step's row."""


class Listening:
    """Calls the driver's listeners for moments of actors, and tracks moments that have begun and not ended."""

    def __init__(
        self, manager: CallbackManager, state: LoopState, services: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.state = state
        self._services = services or {}
        self.answers: dict[Key, Answer] = {}
        """Answers to the last questions, sent when the driver fetches the next ones."""
        self.raised: BaseException | None = None
        """The exception of a listener, so that the caller gets the same object."""
        self._has_begun = False
        self._manager = manager
        self._logged = LoggedMetrics(manager, state)
        self._makers: dict[str, LoopState] = {}
        self._open_moments: list[tuple[str, dict[str, Any]]] = []
        self._interrupts: list[str] = []

    def attached(self) -> AbstractContextManager[None]:
        """Inside, metrics that hooks log reach the record and loggers."""
        return self._logged.attached()

    def interests(self) -> Interests:
        """The moments that actors must send to the driver; always the beginning and the end of training."""
        events = cast("list[EventName]", list(MOMENTS))
        wanted = {event for event in events if self._manager.wants(event)}
        costly = {
            (event, item)
            for event in wanted
            for item in COSTLY
            if item in MOMENTS[event].payload and self._manager.wants(event, item)
        }
        return Interests(frozenset[str](wanted | {"train_start", "train_end"}), frozenset[tuple[str, str]](costly))

    def interrupts(self) -> list[str]:
        """Interrupts of listeners since the last call."""
        taken, self._interrupts = self._interrupts, []
        return taken

    def answer(self, question: Question) -> Answer:
        """Call the listeners of a moment, or a service of the driver."""
        if question.event in self._services:
            return self._serve(question)
        state = self.state
        if MOMENTS[question.event].scope is Scope.MAKER:
            state = self._makers.setdefault(question.key[0], LoopState())  # one object for all moments of one maker
        payload = dict(question.payload)
        if isinstance(payload.get("state"), dict):
            _mirror(payload["state"], state)
            payload["state"] = state
        self._track(question.event, payload)
        before, logged_before = dict(state.metrics), dict(state.logged)
        metrics: dict[str, Any] | None = None
        if question.event == "step_end" and payload["metrics"]:  # else the step was cut short
            payload["metrics"] = metrics = self._logged.join(payload["metrics"])
        error: BaseException | None = None
        try:
            if not self._has_begun:
                self._has_begun = True
                self._manager.begin_training()
            with logging_to(state):
                self._manager.fire(cast("EventName", question.event), *payload.values())
                if question.event in FOLLOWED:
                    self._logged.follow(payload.get("step_idx", state.global_step - 1), metrics)
        except Exception as raised:
            self.raised = error = raised
        except BaseException as raised:  # an interrupt in a callback is an interrupt of the run
            self._interrupts.append(type(raised).__name__)
        logged = changed_entries(logged_before, state.logged)
        if MOMENTS[question.event].scope is Scope.MAKER:
            logged = state.take_logged()  # they go with the maker's next delivery
        stop = (state.stop_reason, state.stopped_by) if state.should_stop else (None, None)
        changes: Changes | None = None
        if question.event == "maker.make_experience_end" and (experience := payload.get("experience")) is not None:
            changes = Changes(experience.reward, experience.action_mask)
        return Answer(
            *stop,
            metrics=changed_entries(before, state.metrics),
            step_metrics={} if metrics is None else changed_entries(question.payload["metrics"], metrics),
            logged=logged,
            error=None if error is None else portable(error),
            value=changes,
        )

    def _serve(self, question: Question) -> Answer:
        try:
            return Answer(value=self._services[question.event](*question.payload["arguments"]))
        except Exception as raised:
            self.raised = raised
            return Answer(error=portable(raised))

    def mirror(self, values: Mapping[str, Any]) -> None:
        """Copy the trainer's state into the driver's."""
        _mirror(values, self.state)

    def end_open_moments(self, error: BaseException) -> None:
        """End every moment that a lost trainer began, innermost first."""
        state = self.state
        if not self._open_moments:
            return
        state.exception = error
        if not isinstance(error, Exception):
            state.stop_training("interrupted", by=type(error).__name__)
        for event, payload in reversed(self._open_moments):
            if event == "train" and isinstance(error, Exception):
                state.metrics["error"] = f"{type(error).__name__}: {error}"
                self._fire_anyway("error", {"state": state, "exception": error}, error)
            self._fire_anyway(cast("EventName", f"{event}_end"), payload, error)
        self._open_moments.clear()

    def _fire_anyway(self, event: EventName, known: Mapping[str, Any], error: BaseException) -> None:
        defaults = {"metrics": {}, "seconds": 0.0, "step_idx": self.state.global_step}
        payload = {name: known.get(name, defaults.get(name)) for name in MOMENTS[event].payload}
        try:
            self._manager.fire(event, *payload.values())
        except BaseException as late:
            note_failure(error, "while it was ending the run", late)

    def _track(self, event: str, payload: dict[str, Any]) -> None:
        """Track the beginning of a moment, or its end, which also ends all that began after it."""
        name, _, side = event.rpartition("_")
        if MOMENTS[event].scope is not Scope.TRAINER:
            return
        begun = [open_name for open_name, _ in self._open_moments]
        if side == "start":
            self._open_moments.append((name, payload))
        elif side == "end" and name in begun:
            del self._open_moments[len(begun) - 1 - begun[::-1].index(name) :]


def _mirror(values: Mapping[str, Any], state: LoopState) -> None:
    for name, value in values.items():
        if name not in ("metrics", "output_dir"):
            state.__dict__[name] = value
    state.metrics.clear()
    state.metrics.update(values.get("metrics", {}))
