"""Saving beside the training: one checkpoint at a time, its row told of at the next boundary."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..data.loop import ManifestRow
from .durable import CheckpointError

WAIT_SECONDS = 600.0


class SavesCheckpoints(Protocol):
    """What writes the checkpoints: a `CheckpointManager`."""

    def save(self, row: ManifestRow, write: Callable[[Path], None]) -> ManifestRow: ...


class BackgroundSaver:
    """Saves in a thread of its own. `write` runs there: give it copies of what training goes on to change.

    An error there is raised once, by whichever of `save`, `finished` and `drain` is called next.
    """

    def __init__(self, manager: SavesCheckpoints, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._manager = manager
        self._wait_seconds = wait_seconds
        self._name = ""
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._rows: list[ManifestRow] = []
        self._error: BaseException | None = None

    def save(self, row: ManifestRow, write: Callable[[Path], None]) -> None:
        """Begin to save and return. A save that is still under way is waited for first."""
        self.drain(self._wait_seconds)
        self._name = row.name
        # A daemon: whoever leaves without draining leaves as in a crash, with the checkpoint before.
        self._thread = threading.Thread(target=self._save, args=(row, write), name=f"save {row.name}", daemon=True)
        self._thread.start()

    def finished(self) -> list[ManifestRow]:
        """The rows that are on the disk since the last time this was asked."""
        self._raise_what_failed()
        with self._guard:
            rows, self._rows = self._rows, []
        return rows

    def drain(self, timeout: float | None = None) -> None:
        """Wait until nothing is under way, so many seconds at most (None: as long as a save may take)."""
        seconds = self._wait_seconds if timeout is None else timeout
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                raise CheckpointError(f"checkpoint {self._name} is still being written after {seconds:g} s of waiting")
            self._thread = None
        self._raise_what_failed()

    def _save(self, row: ManifestRow, write: Callable[[Path], None]) -> None:
        try:
            saved = self._manager.save(row, write)
        except BaseException as error:
            with self._guard:
                self._error = error
        else:
            with self._guard:
                self._rows.append(saved)

    def _raise_what_failed(self) -> None:
        with self._guard:
            error, self._error = self._error, None
        if error is not None:
            raise error
