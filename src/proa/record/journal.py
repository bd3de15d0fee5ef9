"""`journal.jsonl`: the decisions of a run that its seed does not determine, in the order in which they were made.

    {"kind": "lease", "step": 3, "lease": 17}     the schedule `windowed` took this lease next, for that step
    {"kind": "reward", "uid": "68/2", "error": "…"}     this sample was left without a reward: it timed out, say

From these and the seed a run can be repeated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .durable import Disk, opened_to_write
from .patient_writes import LineFile
from .run_folder import BrokenRecordError, as_json_line, refuse_pipe

JOURNAL_NAME = "journal.jsonl"


class Journal:
    """The journal of one run's folder. A run without such decisions has none."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.path = folder / JOURNAL_NAME
        self._lines = LineFile(disk)

    def append(self, entries: Iterable[dict[str, Any]]) -> None:
        """Add entries, all or none, for a reader to see at once. The next checkpoint forces them to the disk."""
        data = "".join(map(as_json_line, entries)).encode("utf-8")
        if data:
            with opened_to_write(self.path, os.O_CREAT | os.O_APPEND) as descriptor:
                self._lines.append(descriptor, data)

    def read(self) -> list[dict[str, Any]]:
        """All entries; a last line that was being written is passed over."""
        try:
            refuse_pipe(self.path)
            text = self.path.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return []
        *lines, _torn = text.split("\n")
        return [_entry(line, number, self.path) for number, line in enumerate(lines, start=1)]


def _entry(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = json.loads(line)
        kind = entry["kind"]
        complete = (kind == "lease" and type(entry["lease"]) is int) or (kind == "reward" and type(entry["uid"]) is str)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BrokenRecordError(f"{path} is broken at line {number}: {error!r}") from error
    if not complete:
        raise BrokenRecordError(f"{path} is broken at line {number}: {line}")
    return entry
