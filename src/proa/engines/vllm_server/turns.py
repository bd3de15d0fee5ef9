"""Engines of one machine that use the same server take turns: it has the weights of one of them.

A run has several: a maker's and those of its evals, which on Ray are in other processes. The locks end with the process
that holds them, however it ends.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path

from .file_lock import FileLock

_LOOK_SECONDS = 0.02


class Turn:
    """The right to use the server at an address. Whoever waits is next: one who has given it up cannot overtake."""

    def __init__(self, address: str) -> None:
        name = hashlib.sha256(address.encode()).hexdigest()[:16]
        folder = Path(tempfile.gettempdir())
        self._server = FileLock(folder / f"proa-vllm-{os.getuid()}-{name}.turn")
        self._next = FileLock(folder / f"proa-vllm-{os.getuid()}-{name}.next")

    @property
    def is_mine(self) -> bool:
        return self._server.is_held

    def take(self, seconds: float) -> bool:
        """Whether it became this one's within the time; if not, the place as the next one is kept once it is had."""
        end = time.monotonic() + seconds
        while not self.is_mine:
            if self._next.try_take() and self._server.try_take():
                self._next.release()
            elif time.monotonic() >= end:
                return False
            else:
                time.sleep(_LOOK_SECONDS)
        return True

    def is_wanted(self) -> bool:
        """Whether somebody else waits for it."""
        if not self._next.try_take():
            return True
        self._next.release()
        return False

    def leave(self) -> None:
        """Give it up, or the place as the next one."""
        self._server.release()
        self._next.release()
