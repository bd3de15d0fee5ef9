"""What the seed does not determine: which lease came first, which sample's reward could not be had."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..data.experience import BufferItem
from ..record.journal import JournalEntry


class Decisions:
    """Notes what was decided, for the journal; and decides as another run of the same plan did, where one is given."""

    def __init__(self) -> None:
        self._noted: list[JournalEntry] = []
        self._script: deque[int] = deque()  # leases to be taken in this order
        self._failed_rewards: Mapping[str, str] = {}  # by uid: samples that had none when the run was first made

    def repeat(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._script = deque(entry["lease"] for entry in entries if entry["kind"] == "lease")
        self._failed_rewards = {entry["uid"]: entry["error"] for entry in entries if entry["kind"] == "reward"}

    def take(self) -> list[JournalEntry]:
        """What was decided since this was last asked."""
        taken, self._noted = self._noted, []
        return taken

    @property
    def awaited(self) -> int | None:
        """The one lease that may come next; None if any may."""
        return self._script[0] if self._script else None

    def first_of(self, arrived: Iterable[int], step: int) -> int:
        """The lease that is trained on next: the first that came."""
        chosen = self._script.popleft() if self._script else next(iter(arrived))
        self._noted.append({"kind": "lease", "step": step, "lease": chosen})
        return chosen

    def as_scored(self, item: BufferItem) -> BufferItem:
        """An item without its reward, where a run is repeated in which it could not be had; others as they are."""
        if item.uid in self._failed_rewards:
            notes = {**item.notes, "reward_failure": "reward_failed", "error": self._failed_rewards[item.uid]}
            item = replace(item, reward=None, notes=notes)
        if item.reward is None and item.uid:
            self._noted.append({"kind": "reward", "uid": item.uid, "error": str(item.notes.get("error", ""))})
        return item
