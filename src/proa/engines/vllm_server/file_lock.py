"""A lock by a file, which ends with the process that holds it, however that ends."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class FileLock:
    """Between all who name this file, in one process or several."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def try_take(self) -> bool:
        """Whether it is held now."""
        import fcntl  # not on every system

        if self._descriptor is None:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return False
            self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.release()
