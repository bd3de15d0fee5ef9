"""A lock that says when another thread wants it."""

from __future__ import annotations

import threading


class WatchedLock:
    """A reentrant lock for the thread that makes it; `is_wanted` is set once another thread asks for it."""

    def __init__(self) -> None:
        self.is_wanted = threading.Event()
        self._lock = threading.RLock()
        self._maker = threading.current_thread()

    def __enter__(self) -> None:
        if threading.current_thread() is not self._maker:
            self.is_wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
