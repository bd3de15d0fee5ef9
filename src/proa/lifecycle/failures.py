"""What a failing hook means: its callback's error policy, applied."""

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
    """Judges what hooks raise. `rebuild` is called when a callback's standing changed."""

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
        """Take one failure into account; returns the error to raise once everyone has heard the moment.

        `first` is the error that an earlier listener left to raise, `subject` the moment's first item;
        `in_task` says that a background task of the listener raised it.
        """
        if isinstance(raised, StopTraining) and isinstance(subject, TrainState):
            subject.stop_training(raised.reason, by=listener.name)
            return first
        _note(raised, listener, subject)
        if not isinstance(raised, Exception):  # an interrupt: nothing outranks it, nothing swallows it
            return raised if first is None or isinstance(first, Exception) else first
        listener.registration.errors += 1
        listener.errors += 1
        if in_task:
            listener.task_failures_in_a_row += 1
        else:
            listener.failures_in_a_row += 1
        # A wrong setting is no passing failure: going on without the callback is not what was asked for.
        if listener.registration.error_policy is ErrorPolicy.RAISE or isinstance(raised, CallbackConfigError):
            return _also(first, raised)
        log.warning("%s failed, training goes on", listener.name, exc_info=raised)
        if listener.registration.error_policy is ErrorPolicy.DISABLE:
            self._disable_if_hopeless(listener)
        return first

    def _disable_if_hopeless(self, listener: Listener) -> None:
        registration = listener.registration
        in_a_row = max(listener.failures_in_a_row, listener.task_failures_in_a_row)
        if in_a_row >= FAILURES_BEFORE_DISABLING and not registration.disabled:
            registration.disabled = True
            log.warning(
                "%s failed %d times in a row and is disabled: it hears only the end of the run",
                registration.name,
                FAILURES_BEFORE_DISABLING,
            )
        self._rebuild()  # without it if disabled, else with a reset of its count after a success


def _note(raised: BaseException, listener: Listener, subject: Any) -> None:
    step = f", {subject.global_step} steps done" if isinstance(subject, TrainState) else ""
    note = f"in callback {listener.name} at {listener.moment.name!r}{step}"
    if "no running event loop" in str(raised):
        note += "; if the hook reaches asyncio through another module, say uses_asyncio=True"
    if note not in getattr(raised, "__notes__", ()):
        raised.add_note(note)


def _also(first: BaseException | None, raised: BaseException) -> BaseException:
    """The first error is the one to raise; what else failed at the same moment is noted on it."""
    if first is None:
        return raised
    note_failure(first, "also failed", raised)
    return first


def note_failure(error: BaseException, what: str, other: BaseException) -> None:
    """Note a second failure, with where it happened, on the error that will be raised."""
    where = "".join(f" ({note})" for note in getattr(other, "__notes__", ()))
    error.add_note(f"{what}: {type(other).__name__}: {other}{where}")
