"""Which groups of samples are trained on: those with rewards that the algorithm can learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..algorithms import Algorithm
from ..data.experience import BufferItem
from ..data.facts import NO_REWARD
from ..data.trajectories import count_samples, split_samples
from ..leases.ledger import Ledger
from ..leases.plan import FilteredGroup

TOO_SMALL = "group_too_small"


class GroupFilter:
    """Leaves out samples without a reward, and groups that the algorithm cannot learn from."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.first_reward_error = ""
        """The error of the first sample without a reward."""
        self._dropped_in_step: dict[str, int] = {}  # samples by reason
        self._unscored_in_step = 0
        self._last_reward_error = ""

    def start_step(self) -> None:
        """Begin to count the samples left out of the next step."""
        self._dropped_in_step, self._unscored_in_step, self._last_reward_error = {}, 0, ""

    def filter(self, group: tuple[BufferItem, ...]) -> FilteredGroup:
        filtered = self._filter(group)
        for reason, items in filtered.dropped.items():
            self._dropped_in_step[reason] = self._dropped_in_step.get(reason, 0) + count_samples(items)
        return filtered

    def _filter(self, group: tuple[BufferItem, ...]) -> FilteredGroup:
        scored = tuple(item for item in group if item.reward is not None)
        dropped: dict[str, tuple[BufferItem, ...]] = {}
        rewards = []
        for rows in split_samples(group):
            last = rows[-1]
            if last.reward is not None:
                rewards.append(last.reward)
                continue
            reason = last.facts.reward_failure or NO_REWARD
            dropped[reason] = (*dropped.get(reason, ()), *rows)
            self._unscored_in_step += 1
            self._last_reward_error = last.facts.reward_error or ""
            self.first_reward_error = self.first_reward_error or self._last_reward_error
        if len(rewards) < self._algorithm.min_group:
            return FilteredGroup((), {**dropped, **({TOO_SMALL: scored} if scored else {})})
        rewards_G = torch.stack(rewards)
        if not self._algorithm.keeps_group(rewards_G):
            return FilteredGroup((), {**dropped, self._algorithm.filter_reason: scored})
        return FilteredGroup(scored, dropped)

    def describe_step(self) -> str:
        """What was left out of this step, as the end of a sentence."""
        words = self._describe(self._dropped_in_step)
        if self._unscored_in_step:
            words += _unscored(self._unscored_in_step, "last", self._last_reward_error)
        return words

    def describe_run(self, ledger: Ledger) -> str:
        """What was left out of the whole run, as the end of a sentence."""
        words = self._describe(ledger.dropped)
        if ledger.failed_rewards:
            words += _unscored(ledger.failed_rewards, "first", self.first_reward_error)
        return words

    def _describe(self, dropped: Mapping[str, int]) -> str:
        found = {reason: dropped.get(reason, 0) for reason in (TOO_SMALL, self._algorithm.filter_reason)}
        return "".join(f"; {_samples(count)} dropped as {reason}" for reason, count in found.items() if count)

    def state_dict(self) -> dict[str, Any]:
        return {"first_reward_error": self.first_reward_error}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Version 0.1 saved the error of the last sample without a reward instead."""
        self.first_reward_error = saved.get("first_reward_error", saved.get("last_reward_error", ""))


def _unscored(count: int, which: str, error: str) -> str:
    because = f", the {which} because: {error}" if error else ""
    return f"; {_samples(count)} had no usable reward{because}"


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"
