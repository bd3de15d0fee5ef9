"""Files and folders that only their owner can read, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents. An existing folder is not changed."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    try:
        folder.mkdir(mode=FOLDER_MODE)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return  # another process created it just now
    folder.chmod(FOLDER_MODE)  # a umask may also restrict the owner


def restrict_folder(folder: Path) -> None:
    """Make an existing folder private, unless another user owns it."""
    if folder.stat().st_uid == os.geteuid():
        folder.chmod(FOLDER_MODE)


def open_private(path: Path, mode: Literal["w", "a"]) -> IO[str]:
    """Open a text file to write or to append. An existing file becomes private."""
    return open(path, mode, encoding="utf-8", newline="", opener=_open_descriptor)


def write_private(path: Path, text: str) -> None:
    """Write a text file."""
    try:
        with open_private(path, "w") as file:
            file.write(text)
    except OSError as error:
        error.filename = error.filename or str(path)  # the system does not know it for an open file
        raise


@contextmanager
def private_writing(folder: Path) -> Iterator[None]:
    """Inside, let a library write to a folder, created if needed; what it wrote is private afterwards.

    A new folder is private from the start. Files that are not written to keep their permissions.
    """
    before = _marks(folder) if folder.is_dir() else {}
    make_private_folder(folder)
    try:
        yield
    finally:
        for path, mark in _marks(folder).items():
            if before.get(path) != mark:
                _restrict_tree(path)


def _open_descriptor(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        status = os.fstat(descriptor)
        # Not for terminals and pipes, nor for files of other users.
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            os.fchmod(descriptor, FILE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _marks(folder: Path) -> dict[Path, tuple[int, int]]:
    """The files and folders in a folder, each with a mark that changes when it is written to or replaced."""
    marks = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                marks[Path(entry.path)] = (status.st_ino, status.st_mtime_ns)
            elif stat.S_ISDIR(status.st_mode):
                marks[Path(entry.path)] = (status.st_ino, 0)
    return marks


def _restrict_tree(path: Path) -> None:
    if not path.is_dir():
        path.chmod(FILE_MODE)
        return
    path.chmod(FOLDER_MODE)
    for inner in _marks(path):
        _restrict_tree(inner)
