"""A disk on which the n-th operation goes wrong, and one that forgets at a power cut what was not synced."""

import errno
import os
import shutil
from pathlib import Path

from proa.record.durable import Disk

OPERATIONS = ("make_folder", "write", "read", "restrict", "sync", "cut", "rename", "remove_tree", "call")


class Crash(BaseException):
    """The process is gone: nothing may catch this and tidy up."""


class QuickDisk(Disk):
    """Does not wait for the hardware: a sweep would wait thousands of times."""

    def sync(self, descriptor):
        pass


class FaultyDisk(QuickDisk):
    """Counts operations, and lets number `at` go wrong in one of several ways.

    `crash` before the operation; `torn`: half of it is done, then a crash; `ENOSPC` and `EIO`: half of it is done, then
    the error; `short`: a write takes half of the data and says so, which is no error; `dead`: EIO from there on.
    """

    def __init__(self, fault: str = "", at: int = -1) -> None:
        self.fault = fault
        self.at = at
        self.log: list[str] = []

    def _is_it(self, name: str) -> bool:
        self.log.append(name)
        number = len(self.log) - 1
        if self.fault == "short" and name != "write":
            return False
        return number == self.at or (self.fault == "dead" and 0 <= self.at < number)

    def _fail(self) -> None:
        if self.fault in ("crash", "torn"):
            raise Crash
        number = errno.ENOSPC if self.fault == "ENOSPC" else errno.EIO
        raise OSError(number, os.strerror(number))

    def make_folder(self, path):
        if self._is_it("make_folder"):
            if self.fault == "torn":
                super().make_folder(path)
            self._fail()
        super().make_folder(path)

    def write(self, descriptor, data):
        if not self._is_it("write"):
            return super().write(descriptor, data)
        half = len(data) // 2
        if self.fault == "short":
            return super().write(descriptor, data[: max(1, half)])
        if self.fault not in ("crash", "dead") and half:
            super().write(descriptor, data[:half])
        return self._fail()

    def read(self, descriptor):
        if self._is_it("read"):
            self._fail()
        return super().read(descriptor)

    def restrict(self, descriptor, mode):
        if self._is_it("restrict"):
            self._fail()
        super().restrict(descriptor, mode)

    def sync(self, descriptor):
        if self._is_it("sync"):
            self._fail()
        super().sync(descriptor)

    def cut(self, descriptor, length):
        if self._is_it("cut"):
            self._fail()
        super().cut(descriptor, length)

    def rename(self, old, new):
        if self._is_it("rename"):
            if self.fault == "torn":
                super().rename(old, new)
            self._fail()
        super().rename(old, new)

    def remove_tree(self, path):
        if self._is_it("remove_tree"):
            if self.fault not in ("crash", "dead"):
                shutil.rmtree(path / "state", ignore_errors=True)
            self._fail()
        super().remove_tree(path)

    def call(self, writer, path):
        if self._is_it("call"):
            if self.fault not in ("crash", "dead"):
                writer(path)
                _halve(path)
            self._fail()
        super().call(writer, path)


class ForgetfulDisk(QuickDisk):
    """Keeps on the disk what was synced: `power_cut` leaves half of what was added to files, and undoes other names."""

    def __init__(self, at: int = -1) -> None:
        self.at = at
        self.count = 0
        self._unsynced: dict[Path, int] = {}
        """Files with their lengths when they were last synced."""
        self._names: list[tuple[Path, Path | None]] = []
        """Names that are new in their folder, and what they were before, if anything."""

    def power_cut(self) -> None:
        for path, length in self._unsynced.items():
            if path.exists():
                os.truncate(path, (length + path.stat().st_size) // 2)
        for new, old in reversed(self._names):
            if old is not None and new.exists():
                new.rename(old)
            elif new.is_dir():
                shutil.rmtree(new)
            elif old is None:
                new.unlink(missing_ok=True)

    def _next(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.power_cut()
            raise Crash

    def make_folder(self, path):
        self._next()
        super().make_folder(path)
        self._names.append((path, None))

    def write(self, descriptor, data):
        self._next()
        path = _path(descriptor)
        if os.fstat(descriptor).st_size == 0:
            self._names.append((path, None))
        self._unsynced.setdefault(path, os.fstat(descriptor).st_size)
        return super().write(descriptor, data)

    def sync(self, descriptor):
        self._next()
        super().sync(descriptor)
        path = _path(descriptor)
        self._unsynced.pop(path, None)
        for new, old in self._names:
            if new.parent == path and old is not None:  # for good: what lies inside is under the new name from now on
                self._names = [(_moved(one, old, new), was) for one, was in self._names]
        self._names = [(new, old) for new, old in self._names if new.parent != path]

    def rename(self, old, new):
        self._next()
        super().rename(old, new)
        self._unsynced = {_moved(path, old, new): length for path, length in self._unsynced.items()}
        # Its own name moves along: what is undone is the rename, and then the making.
        self._names.append((new, old))

    def remove_tree(self, path):
        self._next()
        super().remove_tree(path)

    def call(self, writer, path):
        self._next()
        super().call(writer, path)
        inside = [path] if path.is_file() else list(path.rglob("*"))
        self._unsynced |= {one: 0 for one in inside if one.is_file()}
        self._names += [(one, None) for one in inside]


def inside(folder: Path) -> list[str]:
    """The names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def _path(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def _moved(path: Path, old: Path, new: Path) -> Path:
    return new / path.relative_to(old) if path.is_relative_to(old) else path


def _halve(path: Path) -> None:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    for one in files[:1]:
        os.truncate(one, one.stat().st_size // 2)
