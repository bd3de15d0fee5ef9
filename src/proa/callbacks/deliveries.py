"""Work for the outside world, done in order by a background thread: retried, with deadlines, finished at the end."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from time import monotonic

from ..errors import ProaError
from ..record.secrets import redact_values

log = logging.getLogger("proa.callbacks")

ATTEMPTS = 5
FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
"""Seconds between two attempts; each delay is twice the one before."""


class RefusedError(ProaError):
    """A delivery cannot succeed, however often it is tried."""


class BusyError(ProaError):
    """The other side asks to be left alone for so many seconds."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message, seconds)
        self.message = message
        self.seconds = seconds

    def __str__(self) -> str:
        return self.message


class Delivery(ABC):
    """One thing to deliver; its `str` names it in messages."""

    @abstractmethod
    def attempt(self, until: float) -> None:
        """Deliver it or raise, by the time `until` of `monotonic`. It may have been attempted before."""

    def supersedes(self, earlier: Delivery) -> bool:
        """Whether this one delivers all that an earlier one would."""
        return False

    def end(self) -> None:  # noqa: B027 - most leave nothing behind
        """Called once, when it was delivered or given up."""


class Deliveries:
    """The deliveries of one run. Nothing here raises because a delivery failed: failures are logged and counted.

    `timeout` is how many seconds one delivery may take, all its attempts together. `before` are those of the same run
    before its trainer was restarted: counts continue.
    """

    def __init__(
        self,
        kind: str,
        *,
        timeout: float,
        attempts: int = ATTEMPTS,
        first_delay: float = FIRST_DELAY,
        before: Deliveries | None = None,
    ) -> None:
        self.kind = kind
        self.done: int = 0 if before is None else before.done
        self.failed: int = 0 if before is None else before.failed
        self.skipped: int = 0 if before is None else before.skipped
        self.first_failure: str = "" if before is None else before.first_failure
        self._timeout = timeout
        self._attempts = attempts
        self._first_delay = first_delay
        self._changed = threading.Condition()
        self._waiting: deque[Delivery] = deque()
        self._current: Delivery | None = None
        self._is_over = threading.Event()
        """Set when the run does not wait any longer."""
        self._thread: threading.Thread | None = None

    def submit(self, delivery: Delivery, *, most_waiting: int | None = None) -> None:
        """Have it delivered after those before it. With `most_waiting`, others that wait make room for it: those
        that it supersedes, else the oldest. After `drain` nothing is delivered any more."""
        with self._changed:
            if self._is_over.is_set():
                delivery.end()
                return
            while most_waiting is not None and len(self._waiting) >= most_waiting:
                self._drop_for(delivery)
            self._waiting.append(delivery)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"proa {self.kind}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _drop_for(self, new: Delivery) -> None:
        superseded = next((earlier for earlier in self._waiting if new.supersedes(earlier)), None)
        dropped = superseded or self._waiting[0]
        self._waiting.remove(dropped)
        if superseded is None:
            self.skipped += 1
            log.warning("%s: %s is skipped, because newer ones are waiting", self.kind, dropped)
        dropped.end()

    def drain(self, seconds: float) -> None:
        """Wait that long for all deliveries; what is not done then has failed, and is not tried again."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and self._current is None, seconds)
            late = [*([self._current] if self._current is not None else []), *self._waiting]
            self._is_over.set()
            for delivery in self._waiting:
                delivery.end()
            self._waiting.clear()
            self._changed.notify_all()
            for delivery in late:
                self.failed += 1
                self._log_failure(f"{delivery} was not done {seconds:g} s after the end of training")

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over.is_set())
                if not self._waiting:
                    return
                self._current = delivery = self._waiting.popleft()
            error = self._try(delivery)
            delivery.end()
            if error is not None:
                self._log_failure(redact_values(f"{delivery} failed: {error}"))
            with self._changed:
                self._current = None
                if not self._is_over.is_set():  # else it was counted when the run stopped waiting
                    self.done += error is None
                    self.failed += error is not None
                self._changed.notify_all()

    def _log_failure(self, words: str) -> None:
        self.first_failure = self.first_failure or words
        log.warning("%s: %s", self.kind, words)

    def _try(self, delivery: Delivery) -> Exception | None:
        """Attempt it until it succeeds or cannot; the last error, or None."""
        until, delay = monotonic() + self._timeout, self._first_delay
        for left in reversed(range(self._attempts)):
            try:
                delivery.attempt(until)
                return None
            except Exception as error:  # of any library
                wait = max(delay, error.seconds) if isinstance(error, BusyError) else delay
                if isinstance(error, RefusedError) or not left or monotonic() + wait > until:
                    return error
                log.info("%s: %s failed and is tried again: %s", self.kind, delivery, redact_values(str(error)))
                if self._is_over.wait(wait):
                    return error
                delay = min(2 * delay, LONGEST_DELAY)
        raise AssertionError("the last attempt returns")
