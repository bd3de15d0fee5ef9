"""Says while it lasts that a reward is taking long: who waits for what, since when, and until when."""

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
"""After so long a call is told of; then each time it has taken twice as long, which later calls have to exceed too."""


@dataclass(eq=False, slots=True)
class _Call:
    function: str
    samples: int
    deadline: float | None
    waiting: str
    since: float
    tell_at: float

    def tell(self, now: float) -> None:
        seconds = now - self.since
        until = "it has no deadline" if self.deadline is None else f"its deadline is {self.deadline:.3g} s"
        log.warning(
            "%s has waited %.3g s for reward %r to judge %d sample%s; %s",
            self.waiting, seconds, self.function, self.samples, "" if self.samples == 1 else "s", until,
        )  # fmt: skip


class LongCalls:
    """Watches calls from one thread of its own, which sleeps while there are none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: set[_Call] = set()
        self._patience: dict[str, float] = {}  # seconds that a function's call may take before it is told of
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    @contextmanager
    def watching(self, function: str, samples: int, deadline: float | None) -> Iterator[None]:
        """Inside, a call of this function is made, by this thread."""
        now = monotonic()
        patience = self._patience.get(function, FIRST_SECONDS)
        call = _Call(function, samples, deadline, threading.current_thread().name, now, now + patience)
        with self._changed:
            self._open.add(call)
            if self._thread is None or not self._thread.is_alive():  # the first call; or the first after a fork
                self._thread = threading.Thread(target=self._watch, name="proa long rewards", daemon=True)
                self._thread.start()
            elif call.tell_at < self._wakes_at:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._open.discard(call)

    def _watch(self) -> None:
        with self._changed:
            while True:
                self._wakes_at = min((call.tell_at for call in self._open), default=math.inf)
                self._changed.wait(max(0.0, self._wakes_at - monotonic()) if self._open else None)
                now = monotonic()
                for call in [call for call in self._open if call.tell_at <= now]:
                    call.tell(now)
                    self._patience[call.function] = 2 * (now - call.since)
                    call.tell_at = call.since + self._patience[call.function]


long_calls = LongCalls()
"""Those of this process."""
