"""Which groups of samples are trained on: those with rewards, that can teach something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..algorithms import Algorithm
from ..data.experience import BufferItem
from ..leases.plan import FilteredGroup


class GroupFilter:
    """Leaves out samples without a reward, and groups that cannot teach the algorithm anything."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.first_reward_error = ""
        """What the first sample without a reward said of why."""
        self.last_reward_error = ""

    def filter(self, group: tuple[BufferItem, ...]) -> FilteredGroup:
        scored = tuple(item for item in group if item.reward is not None)
        dropped: dict[str, tuple[BufferItem, ...]] = {}
        for item in group:
            if item.reward is None:
                reason = item.facts.reward_failure or "no_reward"
                dropped[reason] = (*dropped.get(reason, ()), item)
                self.last_reward_error = item.facts.reward_error or ""
                self.first_reward_error = self.first_reward_error or self.last_reward_error
        if len(scored) < self._algorithm.min_group:
            return FilteredGroup((), {**dropped, **({"group_too_small": scored} if scored else {})})
        rewards_G = torch.stack([item.reward for item in scored if item.reward is not None])
        if not self._algorithm.keeps_group(rewards_G):
            return FilteredGroup((), {**dropped, "zero_variance": scored})
        return FilteredGroup(scored, dropped)

    def state_dict(self) -> dict[str, Any]:
        return {"last_reward_error": self.last_reward_error, "first_reward_error": self.first_reward_error}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self.last_reward_error = saved["last_reward_error"]
        self.first_reward_error = saved.get("first_reward_error", self.last_reward_error)
