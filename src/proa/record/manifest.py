"""`checkpoints.jsonl`: the list of checkpoints. A checkpoint that it does not name does not exist.

Lines are only ever appended, and a line counts once its line break is on the disk. So every prefix of the file was a
valid manifest once, and a crash leaves one of them, perhaps with an incomplete line at the end, which is ignored when
reading and cut off before the next append. Rewriting the file on each change would need a second copy, a rename and a
sync of the folder to be as safe.

A line is a row, or `{"name": …, "removed": true}`. The last line of a name counts. A complete line that cannot be read
(a bad block) is reported, ignored and kept: it costs its own checkpoint and no other. While there is one, folders that
no line names are left alone, because the unreadable line may name them.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from types import NoneType
from typing import Any

from ..data.loop import ManifestRow
from .checkpoint_files import check_name
from .durable import CheckpointError, Disk, open_file
from .run_folder import encode_numbers
from .secrets import redact_metrics

log = logging.getLogger("proa.record")

MANIFEST_NAME = "checkpoints.jsonl"
LOCK_SECONDS = 60.0
RETRY_SECONDS = 0.01
_reported: set[tuple[Path, int]] = set()
"""Unreadable lines that this process has logged: a manifest is read many times."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The line that removes a checkpoint."""

    name: str

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "removed": True}


class Manifest:
    """The manifest in one run's folder, read again whenever another process has changed the file.

    A writer reads it once and then keeps track of what it adds: the hundredth checkpoint costs as much as the first.
    Threads may share one.
    """

    def __init__(self, run_folder: Path, disk: Disk) -> None:
        self.path = run_folder / MANIFEST_NAME
        self._disk = disk
        self._guard = threading.RLock()
        self._changes = 0  # how many `changing` blocks this process is in
        self._stamp: tuple[int, ...] | None = None
        """Identifies the state of the file that the next three describe."""
        self._live: dict[str, ManifestRow] = {}
        self._length = 0  # of its complete lines
        self._unreadable = False  # whether a line cannot be read

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Inside, nobody else changes the file: no other thread, and no other process."""
        with self._guard:
            self._changes += 1
            try:
                with nullcontext() if self._changes > 1 else _locked(self.path):
                    yield
            finally:
                self._changes -= 1

    def rows(self) -> list[ManifestRow]:
        """The existing checkpoints, oldest first."""
        with self._guard:
            self._refresh()
            return [replace(row) for row in self._live.values()]

    def history(self) -> list[ManifestRow]:
        """Every checkpoint ever written, including removed ones; the last of each name."""
        return self._read_rows(include_removed=True)

    @property
    def has_unreadable_lines(self) -> bool:
        with self._guard:
            self._refresh()
            return self._unreadable

    def _read_rows(self, *, include_removed: bool) -> list[ManifestRow]:
        rows: dict[str, ManifestRow] = {}
        for number, line in enumerate(self._complete_lines(), start=1):
            content = _parse(line)
            if isinstance(content, Exception):
                if (self.path, number) not in _reported:
                    _reported.add((self.path, number))
                    log.warning("%s: line %d cannot be read and is ignored: %s", self.path, number, content)
            elif not (include_removed and content.get("removed") is True):
                _apply(rows, content)
        return list(rows.values())

    def append(self, lines: Iterable[ManifestRow | Removal]) -> None:
        """Append lines and sync them. If that fails the file is restored, as far as possible."""
        data = manifest_text(lines)
        with self.changing():
            self._refresh()
            length, self._stamp = self._length, None  # unknown until the lines are on the disk
            try:
                self._disk.append(self.path, data, after=length)
            except Exception:
                # If this fails too: half a line is ignored, and a complete one names a complete checkpoint.
                with suppress(OSError, CheckpointError):
                    self._disk.cut_file(self.path, length)
                raise
            for line in data.splitlines():
                _apply(self._live, _checked(line))
            self._length += len(data)
            self._stamp = self._file_stamp()

    def _refresh(self) -> None:
        stamp = self._file_stamp()
        if self._stamp is None or stamp != self._stamp:
            self._live = {row.name: row for row in self._read_rows(include_removed=False)}
            lines = self._complete_lines()
            self._unreadable = any(isinstance(_parse(line), Exception) for line in lines)
            self._length = sum(map(len, lines))
            self._stamp = stamp

    def _file_stamp(self) -> tuple[int, ...]:
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return ()
        return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns

    def _complete_lines(self) -> list[bytes]:
        try:
            data = b"".join(self._disk.chunks(self.path))
        except FileNotFoundError:
            return []
        *lines, _incomplete = data.split(b"\n")
        return [line + b"\n" for line in lines]


def manifest_text(lines: Iterable[ManifestRow | Removal]) -> bytes:
    """Lines of a manifest, without secrets."""
    contents = [line.as_dict() for line in lines]
    for content in contents:
        if metrics := content.get("metrics"):  # only metrics may quote secrets; names and paths must not change
            content["metrics"] = redact_metrics(metrics)
    return b"".join(
        json.dumps(encode_numbers(content), allow_nan=False).encode("ascii") + b"\n" for content in contents
    )


def manifest_rows(text: bytes) -> list[ManifestRow]:
    """The existing checkpoints that a manifest names, oldest first; unreadable lines are ignored."""
    rows: dict[str, ManifestRow] = {}
    for line in text.split(b"\n")[:-1]:
        content = _parse(line)
        if not isinstance(content, Exception):
            _apply(rows, content)
    return list(rows.values())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file, if it exists: hooks in a run's driver may remove checkpoints while a trainer writes one. Before the
    first line there is nothing to remove, and one process that writes."""
    import fcntl  # not on every system

    if not path.exists():
        yield
        return
    until = monotonic() + LOCK_SECONDS
    with open_file(path, os.O_RDWR) as descriptor:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > until:
                    raise CheckpointError(f"{path} has been locked by another process for {LOCK_SECONDS:g} s") from None
            sleep(RETRY_SECONDS)
        yield


def _parse(line: bytes) -> dict[str, Any] | Exception:
    try:
        return _checked(line)
    except (ValueError, TypeError, RecursionError) as error:
        return error


def _checked(line: bytes) -> dict[str, Any]:
    content = json.loads(line)
    if not isinstance(content, dict):
        raise TypeError(f"it holds a {type(content).__name__}, not an object")
    for key, kinds in _KINDS.items():
        if key in content and not isinstance(content[key], kinds):
            raise TypeError(f"{key} cannot be {content[key]!r}")
    if "name" not in content:
        raise TypeError("it has no name")
    check_name(content["name"])
    missing = [key for key in ("batch", "epoch") if key not in content]
    if missing and content.get("removed") is not True:
        raise TypeError(f"it has no {' and no '.join(missing)}")
    return content


_KINDS: dict[str, type | tuple[type, ...]] = {
    "name": str, "batch": int, "epoch": int, "state_path": (str, NoneType), "sampler_path": (str, NoneType),
    "final": bool, "step": int, "policy_version": int, "metrics": dict, "sizes": dict, "digests": dict,
}  # fmt: skip


def _apply(live: dict[str, ManifestRow], content: dict[str, Any]) -> None:
    """Apply one line. A row is final only until another follows it, so that no final row is ever stale."""
    if content.get("removed") is True:
        live.pop(content["name"], None)
        return
    row = ManifestRow.from_dict({"step": content["batch"] + 1} | content)
    old = live.get(row.name)
    # A row with the same paths updates a checkpoint; one that replaces it is in another folder.
    is_new = old is None or (old.state_path, old.sampler_path) != (row.state_path, row.sampler_path)
    if is_new or row.final:
        for other in live.values():
            other.final = False
    if is_new:
        live.pop(row.name, None)  # moves it to the end
    live[row.name] = row
