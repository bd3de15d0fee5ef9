"""Calls to actors. Ray runs a lost call twice or not at all, so all calls here must be safe to repeat."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any, Generic, TypeVar

import ray

from ...errors import ProaError

CALL_SECONDS = 30.0
"""After this long without a reply, a call counts as lost and is repeated."""
LOST = (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError)
"""Ray's errors for lost calls, which may or may not have run."""

Value = TypeVar("Value")


class UnreachableError(ProaError):
    """An actor exists and does not reply."""


def request(method: Any, *arguments: Any, who: str, seconds: float) -> Any:
    """The reply of an actor; lost calls are repeated for `seconds`."""
    until = monotonic() + seconds
    while True:
        try:
            return ray.get(method.remote(*arguments), timeout=min(CALL_SECONDS, max(0.0, until - monotonic())))
        except LOST as lost:
            if monotonic() >= until:
                raise UnreachableError(f"{who} has not replied for {seconds:g} s") from lost
            time.sleep(0.02)


class LongCall(Generic[Value]):
    """A call that may take as long as the run: polled, never waited for, and repeated if it was lost."""

    value: Value
    """The reply, once the call has ended."""

    def __init__(self, who: str, seconds: float, method: Any, *arguments: Any) -> None:
        self.who = who
        self._seconds = seconds
        self._method, self._arguments = method, arguments
        self._reference = method.remote(*arguments)
        self._lost_since: float | None = None
        self._has_ended = False

    def ended(self) -> bool:
        """Whether it has ended, which sets `value`. Raises Ray's error for a dead actor."""
        if self._has_ended:
            return True
        ready, _ = ray.wait([self._reference], timeout=0)
        if not ready:
            self._lost_since = None
            return False
        try:
            self.value = ray.get(self._reference)
        except LOST as lost:
            self._lost_since = self._lost_since or monotonic()
            if monotonic() - self._lost_since > self._seconds:
                raise UnreachableError(f"{self.who} has not replied for {self._seconds:g} s") from lost
            self._reference = self._method.remote(*self._arguments)
            return False
        self._has_ended = True
        return True


class Watched(Generic[Value]):
    """Reports of an actor about itself, requested again and again without waiting."""

    def __init__(self, who: str, seconds: float, method: Any) -> None:
        self.latest: Value | None = None
        self._who, self._seconds, self._method = who, seconds, method
        self._request: LongCall[Value] | None = None

    def look(self) -> bool:
        """Whether there is a new report since the last call."""
        self._request = self._request or LongCall(self._who, self._seconds, self._method)
        if not self._request.ended():
            return False
        self.latest, self._request = self._request.value, None
        return True


class Once(Generic[Value]):
    """In an actor: runs a function once, however often it is called, and gives every call the result."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcome: Future[Value] = Future()

    def __call__(self, do: Callable[[], Value]) -> Value:
        with self._lock:
            if not self._outcome.done():
                try:
                    self._outcome.set_result(do())
                except BaseException as error:
                    self._outcome.set_exception(error)
        return self._outcome.result()


def summarize(error: BaseException) -> str:
    """The gist of Ray's long errors: the first line, and the first sentence of the detail about a worker's exit."""
    if isinstance(error, ray.exceptions.RayTaskError) and error.cause is not None:
        return f"{type(error.cause).__name__}: {error.cause}"
    first, _, rest = str(error).partition("\n")
    _, found, detail = rest.partition("Worker exit detail: ")
    return f"{first} {detail.partition('. ')[0]}" if found else first


def portable(error: BaseException) -> BaseException:
    """The error itself if it can be pickled and restored, else its text."""
    try:
        copy.copy(error)  # some cannot be restored from their arguments
        pickle.dumps(error)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
