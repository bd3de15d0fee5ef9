"""Saving in the background: one checkpoint at a time, reported at the next step boundary."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..data.loop import ManifestRow
from .durable import CheckpointError

WAIT_SECONDS = 600.0


class CheckpointWriter(Protocol):
    """A `CheckpointManager`, as far as it is needed here."""

    def save(self, row: ManifestRow, write: Callable[[Path], None]) -> ManifestRow: ...


class BackgroundSaver:
    """Saves in a thread. `write` runs there: give it copies of everything that training changes.

    An error in the thread is raised once, by the next call of `save`, `finished` or `drain`.
    """

    def __init__(self, manager: CheckpointWriter, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._manager = manager
        self._wait_seconds = wait_seconds
        self._name = ""
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._rows: list[ManifestRow] = []
        self._error: BaseException | None = None

    def save(self, row: ManifestRow, write: Callable[[Path], None]) -> None:
        """Start to save and return. Waits for the previous save first."""
        self.drain(self._wait_seconds)
        self._name = row.name
        # A daemon: leaving without `drain` is like a crash, and leaves the previous checkpoint.
        self._thread = threading.Thread(target=self._save, args=(row, write), name=f"save {row.name}", daemon=True)
        self._thread.start()

    def finished(self) -> list[ManifestRow]:
        """The rows that were completed since the last call."""
        self._raise_pending()
        with self._guard:
            rows, self._rows = self._rows, []
        return rows

    def drain(self, timeout: float | None = None) -> None:
        """Wait for the current save, `timeout` seconds at most (None: `wait_seconds`)."""
        seconds = self._wait_seconds if timeout is None else timeout
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                raise CheckpointError(f"checkpoint {self._name} is still being written after {seconds:g} s of waiting")
            self._thread = None
        self._raise_pending()

    def _save(self, row: ManifestRow, write: Callable[[Path], None]) -> None:
        try:
            saved = self._manager.save(row, write)
        except BaseException as error:
            with self._guard:
                self._error = error
        else:
            with self._guard:
                self._rows.append(saved)

    def _raise_pending(self) -> None:
        with self._guard:
            error, self._error = self._error, None
        if error is not None:
            raise error
