"""What the seed does not determine: which lease came first, which sample's reward failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..data.experience import BufferItem
from ..record.journal import JournalEntry


class Decisions:
    """Collects decisions for the journal, and repeats those of another run of the same plan, where one is given."""

    def __init__(self) -> None:
        self._decisions: list[JournalEntry] = []
        self._script: deque[int] = deque()  # leases to be taken in this order
        self._failed_rewards: Mapping[str, str] = {}  # errors by uid, of samples whose reward failed in that run

    def repeat(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._script = deque(entry["lease"] for entry in entries if entry["kind"] == "lease")
        self._failed_rewards = {entry["uid"]: entry["error"] for entry in entries if entry["kind"] == "reward"}

    def take(self) -> list[JournalEntry]:
        """The decisions since the last call."""
        decisions, self._decisions = self._decisions, []
        return decisions

    def pending(self) -> list[JournalEntry]:
        """The same, left where they are: for a checkpoint in the middle of a step."""
        return list(self._decisions)

    def continue_from(self, pending: Iterable[JournalEntry]) -> None:
        self._decisions = list(pending)

    @property
    def awaited(self) -> int | None:
        """The one lease that may come next; None if any may."""
        return self._script[0] if self._script else None

    def first_of(self, arrived: Iterable[int], step: int) -> int:
        """The lease that is trained on next: the first that arrived."""
        chosen = self._script.popleft() if self._script else next(iter(arrived))
        self._decisions.append({"kind": "lease", "step": step, "lease": chosen})
        return chosen

    def as_scored(self, item: BufferItem) -> BufferItem:
        """The item, without its reward where a run is repeated in which that failed; a failure is a decision."""
        if item.uid in self._failed_rewards:
            facts = item.facts.with_failure("reward_failed", self._failed_rewards[item.uid])
            item = replace(item, reward=None, facts=facts)
        if item.reward is None and item.uid:
            self._decisions.append({"kind": "reward", "uid": item.uid, "error": item.facts.reward_error or ""})
        return item
