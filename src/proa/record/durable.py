"""File operations that survive a crash, one method each, so that a test can make the n-th one fail.

Everything that changes a checkpoint goes through a `Disk`. Files are private to their owner, links are not followed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ProaError

CHUNK_BYTES = 1 << 20


class CheckpointError(ProaError, ValueError):
    """A checkpoint cannot be written, or does not match its manifest row; the message says why."""


class DiskFullError(CheckpointError):
    """The disk is too full for a checkpoint; earlier ones are untouched."""


class Disk:
    """The real disk: primitive operations first, then those composed of them."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(mode=0o700)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write as many bytes as the system accepts; return how many."""
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
        while os.path.lexists(path):
            with suppress(FileNotFoundError):  # another thread or process removes it too
                shutil.rmtree(path)

    def call(self, writer: Callable[[Path], None], path: Path) -> None:
        """Let a library or the caller's own function write there."""
        writer(path)

    # Composed operations.

    def write_file(self, path: Path, data: bytes) -> None:
        """Write a new file."""
        with open_writable(path, os.O_CREAT | os.O_EXCL) as descriptor:
            self.write_all(descriptor, data)

    def replace_file(self, path: Path, data: bytes) -> None:
        """Replace a file atomically: a reader sees the old content or the new."""
        temporary = path.with_name(f".{path.name}.new")
        with open_writable(temporary, os.O_CREAT | os.O_TRUNC) as descriptor:
            self.restrict(descriptor, 0o600)  # a file left by a crash may have other permissions
            self.write_all(descriptor, data)
            self.sync(descriptor)
        self.rename(temporary, path)
        self.sync_folder(path.parent)

    def append(self, path: Path, data: bytes, after: int) -> None:
        """Append after the first `after` bytes, cutting off what follows; synced before this returns."""
        with open_writable(path, os.O_CREAT) as descriptor:
            if os.fstat(descriptor).st_size != after:
                self.cut(descriptor, after)
            os.lseek(descriptor, after, os.SEEK_SET)
            self.write_all(descriptor, data)
            self.sync(descriptor)
        if after == 0:  # its name may be new
            self.sync_folder(path.parent)

    def cut_file(self, path: Path, length: int) -> None:
        with open_file(path, os.O_WRONLY) as descriptor:
            self.cut(descriptor, length)
            self.sync(descriptor)

    def chunks(self, path: Path) -> Iterator[bytes]:
        """The content of a file in chunks."""
        with open_file(path, os.O_RDONLY) as descriptor:
            while piece := self.read(descriptor):
                yield piece

    def sync_folder(self, path: Path) -> None:
        """Sync the entries of a folder."""
        with open_file(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            self.sync(descriptor)

    def write_all(self, descriptor: int, data: bytes) -> None:
        """Write all of it, in as many calls as it takes."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.write(descriptor, rest) :]


@contextmanager
def open_file(path: Path, flags: int) -> Iterator[int]:
    """Open a file or folder and close it at the end. Links are refused, and pipes, which would block."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode=0o600)
    except OSError as error:
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link, and links are not followed in a run's folder") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) and not flags & os.O_DIRECTORY:
            raise CheckpointError(f"{path} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_writable(path: Path, flags: int) -> Iterator[int]:
    """The same for writing; errors inside name the path, which the system does not know for a descriptor."""
    with open_file(path, os.O_WRONLY | flags) as descriptor:
        try:
            yield descriptor
        except OSError as error:
            error.filename = error.filename or str(path)
            raise


def folder_size(path: Path) -> int:
    """The bytes of all files below a folder."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(Path(folder, name)).st_size
            except FileNotFoundError:  # a writer's temporary file
                continue
    return total


def system_error(error: BaseException | None) -> int | None:
    """The errno behind an exception, also where a library reports it only in its message."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            return int(found[1])
        error = error.__cause__ or error.__context__
    return None


def explain(error: Exception, what: str, needs: str, folder: Path) -> Exception:
    """The error to raise when writing failed; the same error if the disk is not the cause."""
    number = system_error(error)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFullError(
            f"{what} cannot be written: {os.strerror(number)}. It needs {needs}; {_free_space(folder, number)}. "
            "Earlier checkpoints are untouched. Free space, keep fewer (checkpoint.keep), or use another output_dir"
        )
    if isinstance(error, ProaError) or not (isinstance(error, OSError) or "(os error" in str(error)):
        return error
    return CheckpointError(f"{what} cannot be written: {error}")


@contextmanager
def explain_failures(what: str, folder: Path) -> Iterator[None]:
    """Errors of a full or failing disk inside name what was being written."""
    try:
        yield
    except Exception as error:
        failure = explain(error, what, "as much as the model", folder)
        if failure is error:
            raise
        raise failure from error


def _free_space(path: Path, number: int) -> str:
    words = f"{format_bytes(shutil.disk_usage(path).free)} are free there"
    if number == errno.EDQUOT:
        return f"{words}, but your quota does not allow as much"
    if number == errno.EFBIG:
        import resource  # not on every system

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        largest = "that" if limit == resource.RLIM_INFINITY else format_bytes(limit)
        return f"{words}, but no file may be larger than {largest} (see `ulimit -f`)"
    return words


def format_bytes(size: int) -> str:
    """
    >>> format_bytes(12_345_678), format_bytes(512)
    ('12.3 MB', '512 bytes')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
