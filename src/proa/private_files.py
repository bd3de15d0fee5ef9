"""Files and folders that are their owner's alone, whatever the umask, which is the process's and is left as it is."""

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
    """Make a folder and those above it that are missing. One that is there stays as it is."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    try:
        folder.mkdir(mode=FOLDER_MODE)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return  # somebody else made it just now
    folder.chmod(FOLDER_MODE)  # a umask may take from the owner, too


def keep_others_out(folder: Path) -> None:
    """Make a folder private that is there already, unless it is somebody else's."""
    if folder.stat().st_uid == os.geteuid():
        folder.chmod(FOLDER_MODE)


def open_private(path: Path, mode: Literal["w", "a"]) -> IO[str]:
    """Open a text file to write it anew or to add to it. One that is there loses the rights of others."""
    return open(path, mode, encoding="utf-8", newline="", opener=_opened)


def write_private(path: Path, text: str) -> None:
    """Write a text file."""
    try:
        with open_private(path, "w") as file:
            file.write(text)
    except OSError as error:
        error.filename = error.filename or str(path)  # which the system does not say of a file that is open
        raise


@contextmanager
def private_writing(folder: Path) -> Iterator[None]:
    """Inside, let a library write to a folder, which is made if need be; what it wrote there is then private.

    Until then nobody else reaches into a folder that is new. What lies in one that is not, and is not written to, stays
    as it is.
    """
    before = _marks(folder) if folder.is_dir() else {}
    make_private_folder(folder)
    try:
        yield
    finally:
        for path, mark in _marks(folder).items():
            if before.get(path) != mark:
                _restrict_all(path)


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        status = os.fstat(descriptor)
        # A terminal or a pipe has no content to keep, and what is another's is not ours to restrict.
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            os.fchmod(descriptor, FILE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _marks(folder: Path) -> dict[Path, tuple[int, int]]:
    """The plain files and folders in a folder, each with what changes when it is written to or replaced."""
    marks = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                marks[Path(entry.path)] = (status.st_ino, status.st_mtime_ns)
            elif stat.S_ISDIR(status.st_mode):
                marks[Path(entry.path)] = (status.st_ino, 0)
    return marks


def _restrict_all(path: Path) -> None:
    if not path.is_dir():
        path.chmod(FILE_MODE)
        return
    path.chmod(FOLDER_MODE)
    for inner in _marks(path):
        _restrict_all(inner)
