"""What a run's driver keeps: the record's files, and the callbacks that live with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ..lifecycle.manager import CallbackManager
from ..policy.random_state import random_state
from ..record.journal import JOURNAL_NAME, Journal

RECORD_FILES = ("metrics.jsonl", JOURNAL_NAME)
"""What is appended to; a run that goes on cuts them back to where its checkpoint was."""


class Driver(Protocol):
    """What trainer rank 0 asks of the run's driver, wherever that is."""

    def before_saving(self) -> dict[str, Any]:
        """What of a checkpoint the driver has: `callbacks`, `random`, and `record`, the lengths of its files."""

    def journal(self, entries: Sequence[dict[str, Any]]) -> None:
        """Write choices down that the seed does not determine."""


class DriverSide:
    """The driver itself."""

    def __init__(self, folder: Path, manager: CallbackManager) -> None:
        self.folder = folder
        self.manager = manager
        self._journal = Journal(folder)

    def before_saving(self) -> dict[str, Any]:
        return {
            "callbacks": self.manager.state_dict(),
            "random": random_state(),
            "record": {name: _lasting_size(self.folder / name) for name in RECORD_FILES},
        }

    def journal(self, entries: Sequence[dict[str, Any]]) -> None:
        self._journal.append(entries)


def _lasting_size(path: Path) -> int:
    """Its length, all of which is on the disk: a checkpoint must not name lines that a power cut takes away."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size
