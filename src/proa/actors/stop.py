"""`StopRequest`: a request to save a checkpoint at the next boundary between steps and end the run.

A signal, the run's driver or Python code makes it; loops look at it between two steps, and those that wait for work are
woken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StopRequest:
    """Whether, and why, a run is to stop.

    >>> stop, woken = StopRequest(), []
    >>> with stop.waking(lambda: woken.append("the trainer")):
    ...     stop.request("SIGTERM")
    >>> stop.reason, woken
    ('SIGTERM', ['the trainer'])
    """

    def __init__(self) -> None:
        self.reason = ""
        """The first reason given; empty without a request."""
        self._lock = threading.Lock()
        self._sleepers: list[Callable[[], None]] = []

    def note(self, reason: str) -> None:
        """Request a stop without waking anyone, which is all that a signal handler may do. Call `wake` soon after."""
        self.reason = self.reason or reason

    def request(self, reason: str) -> None:
        """Request a stop, and wake those that wait."""
        self.note(reason)
        self.wake()

    def wake(self) -> None:
        with self._lock:
            sleepers = list(self._sleepers)
        for wake in sleepers:
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Inside, `wake` is called when a stop is requested, or at once if it was; from any thread."""
        with self._lock:
            self._sleepers.append(wake)
        try:
            if self.reason:
                wake()
            yield
        finally:
            with self._lock:
                self._sleepers.remove(wake)

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if a stop was requested."""
        if self.reason:
            raise KeyboardInterrupt(self.reason)
