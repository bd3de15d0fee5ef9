"""One run, one process: a lock on the run's folder that ends with the process, however it ends."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from .durable import open_file
from .run_folder import LOCK_NAME, RunFolderError

log = logging.getLogger("proa.record")

RETRY_SECONDS = 0.2

_held: set[int] = set()


class RunLockedError(RunFolderError):
    """Another process uses this folder."""


@contextmanager
def lock(run_folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Lock a run's folder, creating it if needed. Raise if another process, or this one, holds the lock and does not
    release it within `patience` seconds."""
    until = monotonic() + patience
    made = [folder for folder in (run_folder, *run_folder.parents) if not folder.exists()]
    run_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = run_folder / LOCK_NAME
    while True:
        with open_file(path, os.O_RDWR | os.O_CREAT) as descriptor:
            _take(descriptor, run_folder, until)
            if not _is_current(descriptor, path):
                continue  # its holder removed the file after we opened it: this lock excludes nobody
            _held.add(descriptor)
            try:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()} {platform.node()}\n".encode())
                yield
            finally:
                _held.discard(descriptor)
                if _is_current(descriptor, path):
                    path.unlink()
                with suppress(OSError):  # a run that was refused before it started leaves no empty folder
                    for folder in made:
                        folder.rmdir()
        return


def is_abandoned(run_folder: Path) -> bool:
    """Whether the process that held the lock on this machine was killed: its file is left, and unlocked."""
    import fcntl  # not on every system

    try:
        with open_file(run_folder / LOCK_NAME, os.O_RDONLY) as descriptor:
            if os.pread(descriptor, 1000, 0).decode("utf-8", "replace").split()[1:] != [platform.node()]:
                return False
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except OSError:  # held, or released and removed
        return False


def is_locked(run_folder: Path) -> bool:
    """Whether a process on this machine holds the lock."""
    import fcntl  # not on every system

    try:
        with open_file(run_folder / LOCK_NAME, os.O_RDONLY) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none
        return False
    return False


def _take(descriptor: int, run_folder: Path, until: float) -> None:
    import fcntl  # not on every system

    logged = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            used = f"{run_folder} is being used by {_holder(descriptor)}"
            if monotonic() >= until:
                raise RunLockedError(f"{used}: two runs cannot share it") from None
        if not logged:
            log.warning("%s; waiting for it", used)
            logged = True
        sleep(RETRY_SECONDS)


def _holder(descriptor: int) -> str:
    pid, _, host = os.pread(descriptor, 1000, 0).decode("utf-8", "replace").strip().partition(" ")
    if not pid:
        return "another process, which has just started"
    if pid == str(os.getpid()) and host == platform.node():
        return f"this process (pid {pid}) already"
    return f"another process (pid {pid}{'' if host == platform.node() else f' on {host}'})"


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _close_after_fork() -> None:
    """A forked child would keep the lock after its parent's death."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_after_fork)
