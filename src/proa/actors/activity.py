"""What an actor is doing, since when, and how long it has spent on each kind of thing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..data.lease import Span


@dataclass(frozen=True, slots=True)
class Doing:
    """One look at an actor."""

    what: str
    """In words, e.g. `generating lease 12`."""
    since: float
    """Seconds since the epoch: it is shown on another machine's clock, or later."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by kind, of finished work."""

    def spent_since(self, earlier: Doing) -> dict[str, float]:
        """Seconds by kind, of work that ended since an earlier look."""
        spent = {kind: seconds - earlier.spent.get(kind, 0.0) for kind, seconds in self.spent.items()}
        return {kind: seconds for kind, seconds in spent.items() if seconds > 0}


MOST_SPANS = 10_000
"""How many are kept if they are not taken."""


class Activity:
    """Kept by the thread that works, and looked at by any other.

    >>> activity = Activity()
    >>> with activity.doing("generate", "generating lease 3"):
    ...     activity.look().what
    'generating lease 3'
    >>> list(activity.look().spent)
    ['generate']
    """

    def __init__(self, what: str = "starting") -> None:
        self._lock = threading.Lock()
        self._what = what
        self._since = time.time()
        self._spent: dict[str, float] = {}
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)

    @contextlib.contextmanager
    def doing(self, kind: str, what: str) -> Iterator[None]:
        """While inside, this is what the actor does; afterwards it is again what it did before."""
        before, start, begun = self._switch(what), time.time(), time.perf_counter()
        try:
            yield
        finally:
            self._switch(before)
            seconds = time.perf_counter() - begun
            with self._lock:
                self._spent[kind] = self._spent.get(kind, 0.0) + seconds
                self._spans.append((kind, start, seconds))

    def count(self, seconds: Mapping[str, float]) -> None:
        """Count time that was spent elsewhere for this actor."""
        with self._lock:
            for kind, more in seconds.items():
                self._spent[kind] = self._spent.get(kind, 0.0) + more

    def take_spans(self) -> tuple[Span, ...]:
        """The work finished since the last call, each piece with its start and duration."""
        with self._lock:
            taken = tuple(self._spans)
            self._spans.clear()
            return taken

    def rest(self, what: str) -> None:
        """Set what the actor does between two pieces of work; the time counts for no kind."""
        self._switch(what)

    def look(self) -> Doing:
        with self._lock:
            return Doing(self._what, self._since, dict(self._spent))

    def _switch(self, what: str) -> str:
        with self._lock:
            before, self._what, self._since = self._what, what, time.time()
            return before
