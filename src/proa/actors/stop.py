"""`StopRequest`: that a run is to save a checkpoint at its next boundary between steps and leave.

It is asked for in one place, by a signal, by the run's driver or from Python, and travels one way: whoever works looks
at it between two steps, and whoever waits for work is woken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StopRequest:
    """Whether, and why, a run is to leave.

    >>> stop, woken = StopRequest(), []
    >>> with stop.waking(lambda: woken.append("the trainer")):
    ...     stop.request("SIGTERM")
    >>> stop.reason, woken
    ('SIGTERM', ['the trainer'])
    """

    def __init__(self) -> None:
        self.reason = ""
        """Why; empty while nobody has asked. The first reason stays."""
        self._lock = threading.Lock()
        self._sleepers: list[Callable[[], None]] = []

    def note(self, reason: str) -> None:
        """Ask without waking anybody: all that a signal handler may do. Somebody must `wake` soon after."""
        self.reason = self.reason or reason

    def request(self, reason: str) -> None:
        """Ask, and wake whoever waits."""
        self.note(reason)
        self.wake()

    def wake(self) -> None:
        with self._lock:
            sleepers = list(self._sleepers)
        for wake in sleepers:
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Inside, `wake` is called when somebody asks; at once if that has happened. From any thread."""
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
        """Raise `KeyboardInterrupt` if somebody asked."""
        if self.reason:
            raise KeyboardInterrupt(self.reason)
