"""The run's callbacks, in the driver: they hear the moments of actors as if these were here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from ...data.state import LoopState
from ...lifecycle.failures import note_failure
from ...lifecycle.manager import CallbackManager
from ...lifecycle.moments import MOMENTS, EventName, Scope
from .calls import portable
from .link import COSTLY, Answer, Changes, Interests, Key, Question


class Listening:
    """Calls the driver's listeners for a moment elsewhere, and knows which moments have begun and not ended."""

    def __init__(
        self, manager: CallbackManager, state: LoopState, services: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.state = state
        self._services = services or {}
        self.answers: dict[Key, Answer] = {}
        """To what was heard last: taken along when the driver comes for more."""
        self.raised: BaseException | None = None
        """What a listener raised, for the caller to see as it was."""
        self._manager = manager
        self._makers: dict[str, LoopState] = {}
        self._begun: list[tuple[str, dict[str, Any]]] = []
        self._interrupts: list[str] = []

    def interests(self) -> Interests:
        """What actors need to tell the driver. That training began and ended is always told."""
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
        """Interrupts that came while a listener ran, since this was last asked."""
        taken, self._interrupts = self._interrupts, []
        return taken

    def hear(self, question: Question) -> Answer:
        """Call the listeners of a moment and say what they did; or do what the trainer asks for."""
        if question.event in self._services:
            return self._serve(question)
        state = self._state_of(question)
        payload = dict(question.payload)
        if isinstance(payload.get("state"), dict):
            _mirror(payload["state"], state)
            payload["state"] = state
        self._note(question.event, payload)
        before = dict(state.metrics)
        error: BaseException | None = None
        try:
            self._manager.fire(cast("EventName", question.event), *payload.values())
        except Exception as raised:
            self.raised = error = raised
        except BaseException as raised:  # an interrupt in a callback is an interrupt of the run
            self._interrupts.append(type(raised).__name__)
        answer = _answer(state, before, error)
        if question.event == "maker.make_experience_end" and (experience := payload.get("experience")) is not None:
            answer = replace(answer, value=Changes(experience.reward, experience.action_mask))
        return answer

    def _serve(self, question: Question) -> Answer:
        try:
            return Answer(value=self._services[question.event](*question.payload["arguments"]))
        except Exception as raised:
            self.raised = raised
            return Answer(error=portable(raised))

    def mirror(self, values: Mapping[str, Any]) -> None:
        """Make the driver's state that of the trainer."""
        _mirror(values, self.state)

    def end_what_began(self, error: BaseException) -> None:
        """The trainer cannot say any more that it is over: end what it began, innermost first."""
        state = self.state
        if not self._begun:
            return
        state.exception = error
        if not isinstance(error, Exception):
            state.stop_training("interrupted", by=type(error).__name__)
        for event, payload in reversed(self._begun):
            if event == "train" and isinstance(error, Exception):
                state.metrics["error"] = f"{type(error).__name__}: {error}"
                self._fire_anyway("error", {"state": state, "exception": error}, error)
            self._fire_anyway(cast("EventName", f"{event}_end"), payload, error)
        self._begun.clear()

    def _fire_anyway(self, event: EventName, known: Mapping[str, Any], error: BaseException) -> None:
        defaults = {"metrics": {}, "seconds": 0.0, "step_idx": self.state.global_step}
        payload = {name: known.get(name, defaults.get(name)) for name in MOMENTS[event].payload}
        try:
            self._manager.fire(event, *payload.values())
        except BaseException as late:
            note_failure(error, "while it was ending the run", late)

    def _note(self, event: str, payload: dict[str, Any]) -> None:
        name, _, side = event.rpartition("_")
        if MOMENTS[event].scope is not Scope.TRAINER:
            return
        if side == "start":
            self._begun.append((name, payload))
        elif side == "end":
            while self._begun and any(begun == name for begun, _ in self._begun) and self._begun.pop()[0] != name:
                pass

    def _state_of(self, question: Question) -> LoopState:
        """One object for all moments of one actor."""
        if MOMENTS[question.event].scope is Scope.MAKER:
            return self._makers.setdefault(question.key[0], LoopState())
        return self.state


def _mirror(values: Mapping[str, Any], state: LoopState) -> None:
    for name, value in values.items():
        if name not in ("metrics", "output_dir"):
            state.__dict__[name] = value
    state.metrics.clear()
    state.metrics.update(values.get("metrics", {}))


def _answer(state: LoopState, before: Mapping[str, Any], error: BaseException | None) -> Answer:
    changed = {name: value for name, value in state.metrics.items() if name not in before or before[name] is not value}
    stop = (state.stop_reason, state.stopped_by) if state.should_stop else (None, None)
    return Answer(*stop, metrics=changed, error=None if error is None else portable(error))
