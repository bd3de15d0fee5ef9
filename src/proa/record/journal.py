"""`journal.jsonl`: the decisions of a run that its seed does not determine, in order.

    {"kind": "lease", "step": 3, "lease": 17}     the schedule `windowed` took this lease next, for this step
    {"kind": "reward", "uid": "68/2", "error": "…"}     this sample got no reward, because of a timeout for example
    {"kind": "environment", "uid": "68/2", "answers": […]}     what an environment that may answer otherwise said to it
    {"kind": "token_budget", "step": 5, "tokens": 4096}     memory was short: so many tokens at once from this step on

The journal and the seed are enough to repeat a run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from .durable import Disk, open_writable
from .patient_writes import LineFile
from .run_folder import BrokenRecordError, check_regular_file, json_line

JOURNAL_NAME = "journal.jsonl"


class LeaseChoice(TypedDict):
    kind: Literal["lease"]
    step: int
    lease: int


class RewardFailure(TypedDict):
    kind: Literal["reward"]
    uid: str
    error: str
    failure: NotRequired[str]
    """The reason under which the ledger counts it, unless that is `reward_failed`."""


class EnvironmentAnswers(TypedDict):
    kind: Literal["environment"]
    uid: str
    answers: list[Any]
    """Its first messages and its tools, then what came of each turn."""


class BudgetChoice(TypedDict):
    kind: Literal["token_budget"]
    step: int
    tokens: int


JournalEntry: TypeAlias = LeaseChoice | RewardFailure | EnvironmentAnswers | BudgetChoice


class Journal:
    """The journal in one run's folder. A run without such decisions has no file."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.path = folder / JOURNAL_NAME
        self._lines = LineFile(disk)

    def append(self, entries: Iterable[JournalEntry]) -> None:
        """Append entries, all or none. The next checkpoint syncs them to the disk."""
        data = "".join(map(json_line, entries)).encode("utf-8")
        if data:
            with open_writable(self.path, os.O_CREAT | os.O_APPEND) as descriptor:
                self._lines.append(descriptor, data)

    def read(self) -> list[JournalEntry]:
        """All entries, without an incomplete last line."""
        try:
            check_regular_file(self.path)
            text = self.path.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return []
        *lines, _incomplete = text.split("\n")
        return [_entry(line, number, self.path) for number, line in enumerate(lines, start=1)]


def _entry(line: str, number: int, path: Path) -> JournalEntry:
    try:
        entry: JournalEntry = json.loads(line)
        if entry["kind"] == "lease":
            is_valid = type(entry["lease"]) is int
        elif entry["kind"] == "token_budget":
            is_valid = type(entry["step"]) is int and type(entry["tokens"]) is int
        elif entry["kind"] == "environment":
            is_valid = type(entry["uid"]) is str and type(entry["answers"]) is list
        else:
            is_valid = entry["kind"] == "reward" and type(entry["uid"]) is str
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BrokenRecordError(f"{path} is broken at line {number}: {error!r}") from error
    if not is_valid:
        raise BrokenRecordError(f"{path} is broken at line {number}: {line}")
    return entry
