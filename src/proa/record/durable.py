"""File operations that survive a crash, each one method, so that a test can count them and make the n-th one fail.

Whatever changes a checkpoint goes through a `Disk`. Files are their owner's alone, and links are never followed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ProaError

CHUNK_BYTES = 1 << 20


class CheckpointError(ProaError, ValueError):
    """A checkpoint cannot be written, or is not what its row says; the message says what is wrong."""


class DiskFullError(CheckpointError):
    """There is no room for a checkpoint; those before it are untouched."""


class Disk:
    """The real disk. The first part are the operations; the second, what is made of them."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(mode=0o700)

    def write(self, descriptor: int, data: memoryview) -> int:
        """As many bytes as the system takes, and how many these were."""
        return os.write(descriptor, data)

    def read(self, descriptor: int) -> bytes:
        return os.read(descriptor, CHUNK_BYTES)

    def restrict(self, descriptor: int, mode: int) -> None:
        os.fchmod(descriptor, mode)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def cut(self, descriptor: int, length: int) -> None:
        os.ftruncate(descriptor, length)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def call(self, writer: Callable[[Path], None], path: Path) -> None:
        """Let somebody else write there: a library, or the one whose checkpoint it is."""
        writer(path)

    # What is made of them.

    def write_file(self, path: Path, data: bytes) -> None:
        """Write a new file."""
        with opened_to_write(path, os.O_CREAT | os.O_EXCL) as descriptor:
            self.write_all(descriptor, data)

    def replace_file(self, path: Path, data: bytes) -> None:
        """Write a file so that a reader sees the old one or the new one, never half of one."""
        beside = path.with_name(f".{path.name}.new")
        with opened_to_write(beside, os.O_CREAT | os.O_TRUNC) as descriptor:
            self.restrict(descriptor, 0o600)  # one that a crash left may have other rights
            self.write_all(descriptor, data)
            self.sync(descriptor)
        self.rename(beside, path)
        self.sync_folder(path.parent)

    def append(self, path: Path, data: bytes, after: int) -> None:
        """Add to a file behind its first so many bytes, on the disk before this returns; the rest is cut off."""
        with opened_to_write(path, os.O_CREAT) as descriptor:
            if os.fstat(descriptor).st_size != after:
                self.cut(descriptor, after)
            os.lseek(descriptor, after, os.SEEK_SET)
            self.write_all(descriptor, data)
            self.sync(descriptor)
        if after == 0:  # its name may be new
            self.sync_folder(path.parent)

    def cut_file(self, path: Path, length: int) -> None:
        with opened(path, os.O_WRONLY) as descriptor:
            self.cut(descriptor, length)
            self.sync(descriptor)

    def chunks(self, path: Path) -> Iterator[bytes]:
        """The content of a file, piece by piece."""
        with opened(path, os.O_RDONLY) as descriptor:
            while piece := self.read(descriptor):
                yield piece

    def sync_folder(self, path: Path) -> None:
        """Make sure that the names in a folder are on the disk."""
        with opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            self.sync(descriptor)

    def write_all(self, descriptor: int, data: bytes) -> None:
        """All of it, in as many pieces as the system takes."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.write(descriptor, rest) :]


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of a file or folder, closed at the end. A link is refused, and so is what would block: a pipe."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode=0o600)
    except OSError as error:
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link, and links are not followed in a run's folder") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) and not flags & os.O_DIRECTORY:
            raise CheckpointError(f"{path} is no plain file")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_to_write(path: Path, flags: int) -> Iterator[int]:
    """The same for writing: what fails inside is told with the path, which the system does not say of a descriptor."""
    with opened(path, os.O_WRONLY | flags) as descriptor:
        try:
            yield descriptor
        except OSError as error:
            error.filename = error.filename or str(path)
            raise


def bytes_below(path: Path) -> int:
    """How much lies in a folder, as far as can be told."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(Path(folder, name)).st_size
            except FileNotFoundError:  # a writer's temporary file
                continue
    return total


def system_error(error: BaseException | None) -> int | None:
    """The number of the system's error behind an exception, also where a library tells it in words only."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        told = re.search(r"\(os error (\d+)\)", str(error))
        if told:
            return int(told[1])
        error = error.__cause__ or error.__context__
    return None


def explained(error: Exception, what: str, needs: str, folder: Path) -> Exception:
    """The error to raise when something could not be written; the same one if the disk is not to blame."""
    number = system_error(error)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFullError(
            f"{what} cannot be written: {os.strerror(number)}. It needs {needs}; there are {_room(folder, number)}. "
            "Earlier checkpoints are as they were. Make room, keep fewer (checkpoint.keep), or use another output_dir"
        )
    if isinstance(error, ProaError) or not (isinstance(error, OSError) or "(os error" in str(error)):
        return error
    return CheckpointError(f"{what} cannot be written: {error}")


@contextmanager
def told_with(what: str, folder: Path) -> Iterator[None]:
    """Inside, a disk that is full or fails is told with what was being written there."""
    try:
        yield
    except Exception as error:
        failure = explained(error, what, "as much as the model", folder)
        if failure is error:
            raise
        raise failure from error


def _room(path: Path, number: int) -> str:
    """How much more may be written to a folder."""
    words = f"{in_words(shutil.disk_usage(path).free)} free there"
    if number == errno.EDQUOT:
        return f"{words}, of which the quota does not allow as much"
    if number == errno.EFBIG:
        import resource  # not on every system

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        largest = "that" if limit == resource.RLIM_INFINITY else in_words(limit)
        return f"{words}, but no file may be larger than {largest} (see `ulimit -f`)"
    return words


def in_words(size: int) -> str:
    """
    >>> in_words(12_345_678), in_words(512)
    ('12.3 MB', '512 bytes')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
