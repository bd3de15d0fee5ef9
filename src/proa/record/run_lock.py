"""One run, one process: a lock on the run's folder that ends with whoever holds it, however that ends."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from .durable import opened
from .run_folder import LOCK_NAME, RunFolderError

log = logging.getLogger("proa.record")

LOOK_SECONDS = 0.2

_held: set[int] = set()


class RunLockedError(RunFolderError):
    """Another process runs in this folder."""


@contextmanager
def lock(run_folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold a run's folder, which is made if need be. Raise if another process, or this one, has it already and does not
    leave it for that many seconds."""
    until = monotonic() + patience
    made = [folder for folder in (run_folder, *run_folder.parents) if not folder.exists()]
    run_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = run_folder / LOCK_NAME
    while True:
        with opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
            _take(descriptor, run_folder, until)
            if not _is_still_there(descriptor, path):
                continue  # the one before removed the file after we had opened it: this lock keeps nobody out
            _held.add(descriptor)
            try:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()} {platform.node()}\n".encode())
                yield
            finally:
                _held.discard(descriptor)
                if _is_still_there(descriptor, path):
                    path.unlink()
                _remove_empty(made)
        return


def was_left(run_folder: Path) -> bool:
    """Whether whoever held a folder on this machine is gone and could not say so: it was killed."""
    import fcntl  # not on every system

    try:
        with opened(run_folder / LOCK_NAME, os.O_RDONLY) as descriptor:
            if os.pread(descriptor, 1000, 0).decode("utf-8", "replace").split()[1:] != [platform.node()]:
                return False
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except OSError:  # it is held, or nobody holds it and it was taken away
        return False


def _take(descriptor: int, run_folder: Path, until: float) -> None:
    import fcntl  # not on every system

    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            used = f"{run_folder} is being used by {_holder(descriptor)}"
            if monotonic() >= until:
                raise RunLockedError(f"{used}: two runs cannot share it") from None
        if not told:
            log.warning("%s, which is waited for", used)
            told = True
        sleep(LOOK_SECONDS)


def _holder(descriptor: int) -> str:
    pid, _, host = os.pread(descriptor, 1000, 0).decode("utf-8", "replace").strip().partition(" ")
    if not pid:
        return "another process, which has just begun"
    if pid == str(os.getpid()) and host == platform.node():
        return f"this process (pid {pid}) already"
    return f"another process (pid {pid}{'' if host == platform.node() else f' on {host}'})"


def _remove_empty(folders: list[Path]) -> None:
    """A run that was refused before it began leaves no folder."""
    with suppress(OSError):  # one that is not empty ends it
        for folder in folders:
            folder.rmdir()


def _is_still_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _let_go_in_a_child() -> None:
    """A forked child would hold the lock on after its parent's death."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_a_child)
