"""Waits: each has an owner, a reason and a deadline, and can be looked at while it lasts."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from ..errors import ProaError

log = logging.getLogger(__name__)


class WaitTimeoutError(ProaError, TimeoutError):
    """A wait passed its deadline; the message says whose, for what, and what everyone else did."""


class ClosedError(ProaError):
    """The run has ended, so the wait is over."""


class StepInterrupted(ProaError):  # noqa: N818 - says what happened
    """A stop was requested while the trainer waited for its next batch."""


class LeaseFailedError(ProaError):
    """A maker could not make a lease; another may."""

    def __init__(self, message: str, lease_id: int = -1) -> None:
        super().__init__(message, lease_id)
        self.lease_id = lease_id

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait that is under way."""

    owner: str
    reason: Callable[[], str]
    """Called at each look, as the reason may change during the wait."""
    since: float

    def __str__(self) -> str:
        return f"{self.owner} has waited {monotonic() - self.since:.1f} s for {self.reason()}"


class WaitingRoom:
    """A condition variable that lists its waits. As a context manager it is its lock."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.RLock())
        self._waits: dict[int, Wait] = {}
        self.progress = 0
        """Counts announcements, so that a watchdog sees whether anything happens."""

    def __enter__(self) -> WaitingRoom:
        self._condition.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._condition.release()

    def announce(self) -> None:
        """Something happened: every wait checks its condition again."""
        with self._condition:
            self.progress += 1
            self._condition.notify_all()

    def wait_until(
        self, ready: Callable[[], bool], *, owner: str, reason: str | Callable[[], str], timeout: float
    ) -> None:
        """Wait, holding the lock before and after, until `ready()`; raise when `timeout` seconds have passed."""
        if ready():
            return
        describe = reason if callable(reason) else lambda: str(reason)
        with self._listed(Wait(owner, describe, monotonic())) as wait:
            if not self._condition.wait_for(ready, timeout):
                others = "".join(f"; {other}" for other in self.waits() if other is not wait)
                raise WaitTimeoutError(f"{wait}, longer than wait_timeout={timeout:g} s{others}")

    def waits(self) -> list[Wait]:
        """Who waits now, longest first."""
        with self._condition:
            return sorted(self._waits.values(), key=lambda wait: wait.since)

    @contextlib.contextmanager
    def _listed(self, wait: Wait) -> Iterator[Wait]:
        self._waits[id(wait)] = wait
        try:
            yield wait
        finally:
            del self._waits[id(wait)]


class LongWaits:
    """Warns of a long wait while it lasts, with what everyone else is doing, and again each time it has doubled.

    Later waits are reported only if they are longer, so that a slow run is not reported at every step.
    """

    def __init__(self, owner: str, first_seconds: float = 30.0) -> None:
        self._owner = owner
        self._patience = first_seconds

    def look(self, waits: Iterable[tuple[str, str, float]], doing: Callable[[], Iterable[str]]) -> None:
        """`waits` are owner, reason and seconds; `doing` says what the others do."""
        for owner, reason, seconds in waits:
            if owner == self._owner and seconds >= self._patience:
                self._patience = 2 * seconds
                log.warning("%s has waited %.0f s for %s; %s", owner, seconds, reason, "; ".join(doing()))
