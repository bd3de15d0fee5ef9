"""`checkpoints.jsonl`: which checkpoints there are. What it does not name does not exist.

Lines are only ever added, and a line counts once its end is on the disk. So every beginning of the file is a manifest
that was true once, and a crash can only leave one of them, with perhaps a piece of a line behind it, which is passed
over when reading and cut off before the next line is added. Rewriting the file for every change would be as safe only
with a second copy, a rename and a folder to be synced, each of them one more thing that can fail.

A line is a row, or `{"name": …, "removed": true}`. The last line of a name counts. A whole line that cannot be read, a
bad block's say, is reported and passed over, and stays where it is: it costs its own checkpoint and no other. While
there is one, folders that no line names are left alone, because it may be the line that names them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

from ..data.loop import ManifestRow
from .checkpoint_files import check_name
from .durable import CheckpointError, Disk
from .run_folder import readable
from .secrets import redact_metrics

log = logging.getLogger("proa.record")

MANIFEST_NAME = "checkpoints.jsonl"
_reported: set[tuple[Path, int]] = set()
"""Lines that this process has complained about: a manifest is read many times."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The line that says that a checkpoint is no more."""

    name: str

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "removed": True}


class Manifest:
    """The manifest of one run's folder. The file is the truth: it is read anew whenever somebody else changed it.

    Whoever writes reads it once, and then knows what it added: the hundredth checkpoint costs what the first did.
    """

    def __init__(self, run_folder: Path, disk: Disk) -> None:
        self.path = run_folder / MANIFEST_NAME
        self._disk = disk
        self._read_as: tuple[int, ...] | None = None
        """Which state of the file is known: the three below are of this one."""
        self._live: dict[str, ManifestRow] = {}
        self._length = 0  # of its whole lines
        self._unreadable = False  # one of them at least

    def rows(self) -> list[ManifestRow]:
        """The checkpoints that there are, in the order in which they were written."""
        self._read_if_changed()
        return [replace(row) for row in self._live.values()]

    def history(self) -> list[ManifestRow]:
        """Every checkpoint that there ever was, also those that were pruned since; the last of each name."""
        return self._told(with_removed=True)

    @property
    def has_unreadable_lines(self) -> bool:
        self._read_if_changed()
        return self._unreadable

    def _told(self, *, with_removed: bool) -> list[ManifestRow]:
        rows: dict[str, ManifestRow] = {}
        for number, line in enumerate(self._whole_lines(), start=1):
            content = _content_or_error(line)
            if isinstance(content, Exception):
                self._report(number, content)
            elif not (with_removed and content.get("removed") is True):
                _apply(rows, content)
        return list(rows.values())

    def _report(self, number: int, error: Exception) -> None:
        if (self.path, number) not in _reported:
            _reported.add((self.path, number))
            log.warning("%s cannot be read at line %d, which is passed over: %s", self.path, number, error)

    def append(self, lines: Iterable[ManifestRow | Removal]) -> None:
        """Add lines, on the disk before this returns. If that fails the file is as it was, as far as it can be."""
        data = b"".join(map(_as_line, lines))
        self._read_if_changed()
        length, self._read_as = self._length, None  # until the lines are on the disk nothing is known
        try:
            self._disk.append(self.path, data, after=length)
        except Exception:
            self._take_back(length)
            raise
        for line in data.splitlines():
            _apply(self._live, _content(line))
        self._length += len(data)
        self._read_as = self._state_of_file()

    def _read_if_changed(self) -> None:
        state = self._state_of_file()
        if self._read_as is None or state != self._read_as:
            self._live = {row.name: row for row in self._told(with_removed=False)}
            lines = self._whole_lines()
            self._unreadable = any(isinstance(_content_or_error(line), Exception) for line in lines)
            self._length = sum(map(len, lines))
            self._read_as = state

    def _state_of_file(self) -> tuple[int, ...]:
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return ()
        return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns

    def _take_back(self, length: int) -> None:
        # If even that fails: half a line is passed over, and a whole one names a checkpoint that is whole.
        with suppress(OSError, CheckpointError):
            self._disk.cut_file(self.path, length)

    def _whole_lines(self) -> list[bytes]:
        try:
            data = b"".join(self._disk.chunks(self.path))
        except FileNotFoundError:
            return []
        *lines, _torn = data.split(b"\n")  # what follows the last line break was not written to its end
        return [line + b"\n" for line in lines]


def _as_line(line: ManifestRow | Removal) -> bytes:
    content = line.as_dict()
    if metrics := content.get("metrics"):  # the one place for words of others; names and paths must stay what they are
        content["metrics"] = redact_metrics(metrics)
    return json.dumps(readable(content), allow_nan=False).encode("ascii") + b"\n"


def _content_or_error(line: bytes) -> dict[str, Any] | Exception:
    try:
        return _content(line)
    except (ValueError, TypeError, RecursionError) as error:
        return error


def _content(line: bytes) -> dict[str, Any]:
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
    """One line more. A final row is final only until training goes on, so that none is ever stale."""
    if content.get("removed") is True:
        live.pop(content["name"], None)
        return
    row = ManifestRow.from_dict({"step": content["batch"] + 1} | content)
    another = not _is_same_checkpoint(live.get(row.name), row)
    if another or row.final:
        for other in live.values():
            other.final = False
    if another:
        live.pop(row.name, None)  # so that it stands at the end
    live[row.name] = row


def _is_same_checkpoint(old: ManifestRow | None, new: ManifestRow) -> bool:
    """Whether a row only says more of a checkpoint that is there; one that replaces it lies elsewhere."""
    return old is not None and (old.state_path, old.sampler_path) == (new.state_path, new.sampler_path)
