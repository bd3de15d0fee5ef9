"""Writes a run's record to a disk that may be full for a while: nothing is lost, nothing is written twice.

A failing logger may be disabled, the record may not: writes that fail are kept in memory, in order, and repeated until
they succeed; if they never do, the run ends with the reason.
"""

from __future__ import annotations

import logging
import os
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import sleep

from ..errors import ProaError
from .durable import Disk

log = logging.getLogger("proa.record")

MOST_WAITING = 1000
"""How many writes may wait in memory before the run ends."""
LAST_PAUSES = (0.1, 0.4, 1.5)
"""Seconds between the last tries, when no later step will try again."""


class RecordError(ProaError, OSError):
    """The record of a run cannot be written."""


class PatientWrites:
    """Performs writes in order, each as soon as the disk allows it.

    A write must succeed or have no effect, so that it can be repeated: see `LineFile`.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Path, Callable[[], None]]] = deque()
        self._error: OSError | None = None

    def write(self, path: Path, make: Callable[[], None]) -> None:
        """Perform a write to `path` now, or after those that wait. Raises once too many wait."""
        self._waiting.append((path, make))
        self._try()
        if len(self._waiting) > MOST_WAITING:
            raise self._failure()

    def finish(self, pauses: tuple[float, ...] = LAST_PAUSES) -> None:
        """Perform all waiting writes; raise if a few tries fail."""
        self._try()
        for pause in pauses:
            if self._waiting:
                sleep(pause)
                self._try()
        if self._waiting:
            raise self._failure()

    def _try(self) -> None:
        while self._waiting:
            path, make = self._waiting[0]
            try:
                make()
            except OSError as error:
                if self._error is None:
                    reason = error.strerror or str(error)
                    log.warning("%s cannot be written for now: %s. Its entries are kept in memory", path, reason)
                self._error = error
                return
            self._waiting.popleft()
        if self._error is not None:
            log.warning("the record can be written again, and nothing is missing")
            self._error = None

    def _failure(self) -> RecordError:
        path, _ = self._waiting[0]
        reason = (self._error.strerror or str(self._error)) if self._error else ""
        return RecordError(
            f"{path} cannot be written: {reason}. {len(self._waiting)} entries of the record wait in memory. Free "
            "space, or use another output_dir, and resume the run from its last checkpoint"
        )


class LineFile:
    """Appends whole lines or nothing: a partial line left by a failed try is cut off by the next."""

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()
        self._whole: int | None = None
        """After a failed try, the length of the file's complete lines."""

    def append(self, descriptor: int, data: bytes) -> None:
        status = os.fstat(descriptor)
        if self._whole is not None and stat.S_ISREG(status.st_mode):  # a pipe or a terminal cannot be cut
            self._disk.cut(descriptor, self._whole)
            os.lseek(descriptor, self._whole, os.SEEK_SET)
        elif self._whole is None:
            self._whole = status.st_size
        self._disk.write_all(descriptor, data)
        self._whole = None
