"""Decisions that the seed does not determine: which lease came first, which sample's reward failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..data.experience import BufferItem
from ..data.facts import NO_REWARD
from ..data.trajectories import split_samples
from ..record.journal import JournalEntry, RewardFailure


class Decisions:
    """Collects decisions for the journal, and repeats those of another run of the same plan, if given."""

    def __init__(self) -> None:
        self._decisions: list[JournalEntry] = []
        self._script: deque[int] = deque()  # leases to be taken in this order
        self._failures: Mapping[str, tuple[str, str]] = {}  # by uid, of samples without a reward in that run: the
        # reason under which the ledger counts them, and the error

    def repeat(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._script = deque(entry["lease"] for entry in entries if entry["kind"] == "lease")
        self._failures = {
            entry["uid"]: (entry.get("failure", "reward_failed"), entry["error"])
            for entry in entries
            if entry["kind"] == "reward"
        }

    def take(self) -> list[JournalEntry]:
        """The decisions since the last call."""
        decisions, self._decisions = self._decisions, []
        return decisions

    def pending(self) -> list[JournalEntry]:
        """The same without taking them, for a checkpoint in the middle of a step."""
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

    def as_scored(self, group: Sequence[BufferItem]) -> tuple[BufferItem, ...]:
        """A group, in a repeated run without the rewards that failed in the original. Failures of rewards, and answers
        of environments that are not deterministic, are noted as decisions."""
        scored: list[BufferItem] = []
        for rows in split_samples(group):
            uid = rows[0].uid
            if uid in self._failures:
                rows = tuple(
                    replace(item, reward=None, facts=item.facts.with_failure(*self._failures[uid])) for item in rows
                )
            if rows[0].reward is None and uid:
                self._decisions.append(_failure(rows[-1]))
            trajectory = rows[-1].facts.trajectory
            if trajectory is not None and trajectory.answers:
                self._decisions.append({"kind": "environment", "uid": uid, "answers": list(trajectory.answers)})
            scored += rows
        return tuple(scored)


def _failure(item: BufferItem) -> RewardFailure:
    entry: RewardFailure = {"kind": "reward", "uid": item.uid, "error": item.facts.reward_error or ""}
    failure = item.facts.reward_failure or NO_REWARD
    if failure != "reward_failed":
        entry["failure"] = failure
    return entry
