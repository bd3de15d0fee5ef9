"""Applies a callback's error policy when one of its hooks fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..data.state import StopTraining, TrainState
from ..errors import CallbackConfigError
from .listeners import Listener
from .policy import FAILURES_BEFORE_DISABLING, ErrorPolicy

log = logging.getLogger("proa.lifecycle")


class Failures:
    """Handles errors of hooks. `rebuild` is called when a callback was disabled or its count must be reset."""

    def __init__(self, rebuild: Callable[[], None]) -> None:
        self._rebuild = rebuild

    def judge(
        self,
        listener: Listener,
        raised: BaseException,
        first: BaseException | None,
        subject: Any,
        *,
        in_task: bool = False,
    ) -> BaseException | None:
        """Handle one failure; returns the error to raise after all listeners were called.

        `first` is the error of an earlier listener, `subject` the moment's first item; `in_task` says that a background
        task of the listener raised it.
        """
        if isinstance(raised, StopTraining) and isinstance(subject, TrainState):
            subject.stop_training(raised.reason, by=listener.name)
            return first
        _note(raised, listener, subject)
        if not isinstance(raised, Exception):  # an interrupt has precedence and is never swallowed
            return raised if first is None or isinstance(first, Exception) else first
        listener.registration.errors += 1
        listener.registration.first_error = listener.registration.first_error or describe(raised)
        listener.errors += 1
        if in_task:
            listener.task_failures_in_a_row += 1
        else:
            listener.failures_in_a_row += 1
        # A wrong setting is not a passing failure: the user did not ask to train without the callback.
        if listener.registration.error_policy is ErrorPolicy.RAISE or isinstance(raised, CallbackConfigError):
            if first is None:
                return raised
            note_failure(first, "also failed", raised)
            return first
        log.warning("%s failed; training continues", listener.name, exc_info=raised)
        if listener.registration.error_policy is ErrorPolicy.DISABLE:
            self._check_disabling(listener)
        return first

    def _check_disabling(self, listener: Listener) -> None:
        registration = listener.registration
        in_a_row = max(listener.failures_in_a_row, listener.task_failures_in_a_row)
        if in_a_row >= FAILURES_BEFORE_DISABLING and not registration.disabled:
            registration.disabled = True
            log.warning(
                "%s failed %d times in a row and is disabled: it hears only the end of the run",
                registration.name,
                FAILURES_BEFORE_DISABLING,
            )
        self._rebuild()  # without the callback if disabled, else with a reset of its count after a success


def _note(raised: BaseException, listener: Listener, subject: Any) -> None:
    step = f", {subject.global_step} steps done" if isinstance(subject, TrainState) else ""
    note = f"in callback {listener.name} at {listener.moment.name!r}{step}"
    if "no running event loop" in str(raised):
        note += "; if the hook uses asyncio through another module, set uses_asyncio=True"
    if note not in getattr(raised, "__notes__", ()):
        raised.add_note(note)


def note_failure(error: BaseException, what: str, other: BaseException) -> None:
    """Add a note about a second failure, with its place, to the error that will be raised."""
    error.add_note(f"{what}: {describe(other)}")


def describe(error: BaseException) -> str:
    """An error with its place, in one piece of text."""
    where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}{where}"
