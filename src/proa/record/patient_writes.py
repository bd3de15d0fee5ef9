"""Files of a run's record on a disk that may be full for a while: nothing is lost, nothing is written twice.

A logger that fails may be left out. The record may not: what the disk does not take is kept in memory, in order, and
written as soon as it does; if it never does, the run ends and says why.
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
"""So many writes may wait in memory before the run is ended."""
LAST_PAUSES = (0.1, 0.4, 1.5)
"""Seconds between the last tries, when there will be no later step to try again at."""


class RecordError(ProaError, OSError):
    """The record of a run cannot be written."""


class PatientWrites:
    """Makes writes in the order in which they were asked for, each as soon as the disk lets it.

    A write must be whole or have no effect, so that it can be tried again: see `LineFile`.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Path, Callable[[], None]]] = deque()
        self._error: OSError | None = None

    def write(self, path: Path, make: Callable[[], None]) -> None:
        """Have this written to `path` now, or when what waits before it is. Raises once too much waits."""
        self._waiting.append((path, make))
        self._try()
        if len(self._waiting) > MOST_WAITING:
            raise self._failure()

    def finish(self, pauses: tuple[float, ...] = LAST_PAUSES) -> None:
        """Write all that waits; raise if that cannot be done, after a few tries."""
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
                    said = _in_words(error)
                    log.warning("%s cannot be written for now: %s. What comes is kept until it can be", path, said)
                self._error = error
                return
            self._waiting.popleft()
        if self._error is not None:
            log.warning("the record can be written again, and nothing of it is missing")
            self._error = None

    def _failure(self) -> RecordError:
        path, _ = self._waiting[0]
        return RecordError(
            f"{path} cannot be written: {_in_words(self._error)}. "
            f"{len(self._waiting)} entries of the record wait in memory. Make room, or use another output_dir, and "
            "resume the run from its last checkpoint"
        )


def _in_words(error: OSError | None) -> str:
    """What the system says, without its number and the path that is told already."""
    return (error.strerror or str(error)) if error is not None else ""


class LineFile:
    """Adds whole lines to the end of a file, or nothing: half of one that a failed try left is cut off by the next."""

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()
        self._whole: int | None = None
        """After a failed try, how much of the file is whole lines."""

    def append(self, descriptor: int, data: bytes) -> None:
        status = os.fstat(descriptor)
        if self._whole is not None and stat.S_ISREG(status.st_mode):  # a pipe or a terminal keeps what it was given
            self._disk.cut(descriptor, self._whole)
            os.lseek(descriptor, self._whole, os.SEEK_SET)
        elif self._whole is None:
            self._whole = status.st_size
        self._disk.write_all(descriptor, data)
        self._whole = None
