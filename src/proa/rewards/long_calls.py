"""Warns while a reward takes long: who waits for what, for how long, and until when."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

log = logging.getLogger(__name__)

FIRST_SECONDS = 5.0
"""When the first warning comes; then at twice the time, and so on. Later calls of the function start from there."""


@dataclass(eq=False, slots=True)
class _Call:
    function: str
    samples: int
    deadline: float | None
    waiter: str
    since: float
    warn_at: float

    def warn(self, now: float) -> None:
        seconds = now - self.since
        until = "it has no deadline" if self.deadline is None else f"its deadline is {self.deadline:.3g} s"
        log.warning(
            "%s has waited %.3g s for reward %r to judge %d sample%s; %s",
            self.waiter, seconds, self.function, self.samples, "" if self.samples == 1 else "s", until,
        )  # fmt: skip


class LongCalls:
    """Watches calls from a background thread, which sleeps while there are none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: set[_Call] = set()
        self._patience: dict[str, float] = {}  # seconds before a warning, by function
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    @contextmanager
    def watching(self, function: str, samples: int, deadline: float | None) -> Iterator[None]:
        """Watch the call that this thread makes inside."""
        now = monotonic()
        patience = self._patience.get(function, FIRST_SECONDS)
        call = _Call(function, samples, deadline, threading.current_thread().name, now, now + patience)
        with self._changed:
            self._open.add(call)
            if self._thread is None or not self._thread.is_alive():  # the first call, or the first after a fork
                self._thread = threading.Thread(target=self._watch, name="proa long rewards", daemon=True)
                self._thread.start()
            elif call.warn_at < self._wakes_at:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._open.discard(call)

    def _watch(self) -> None:
        with self._changed:
            while True:
                self._wakes_at = min((call.warn_at for call in self._open), default=math.inf)
                self._changed.wait(max(0.0, self._wakes_at - monotonic()) if self._open else None)
                now = monotonic()
                for call in [call for call in self._open if call.warn_at <= now]:
                    call.warn(now)
                    self._patience[call.function] = 2 * (now - call.since)
                    call.warn_at = call.since + self._patience[call.function]


long_calls = LongCalls()
"""The calls of this process."""
