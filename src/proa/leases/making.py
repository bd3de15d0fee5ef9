"""What it took to make the leases of a step, and what came of them, as the step's metrics say it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.experience import BufferItem
from ..data.lease import Delivery

_KINDS = ("generate", "score", "load", "switch", "wait")
"""Where a maker's time goes before it sends; `switch` is for how long its stream stood still for new weights."""


@dataclass
class Making:
    """Seconds and tokens summed over the leases that were consumed for one step, and what their samples were like,
    before any was filtered out.

    >>> making = Making()
    >>> making.add(Delivery(0, (), "maker_0", {"generate": 2.0}))
    >>> making.add(Delivery(1, (), "maker_1", {"generate": 1.0}))
    >>> making.metrics()
    {'maker.generate_seconds': 3.0, 'maker.tokens_per_second': 0.0, 'makers': 2.0}
    """

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    """Of the deliveries that say how long they were generated."""
    makers: set[str] = field(default_factory=set)
    samples: int = 0
    without_reward: int = 0
    ended: int = 0
    """Samples that say how they ended."""
    truncated: int = 0
    groups: int = 0
    """With two rewards or more."""
    groups_without_variance: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)
    """What hooks of makers logged, by name."""
    reward_values: dict[str, list[float]] = field(default_factory=dict)
    """The numbers that rewards logged, by name, one for each sample."""
    probe_gap: float | None = None
    """The widest between trainer and an engine; it is only told, and not saved."""

    def add(self, delivery: Delivery) -> None:
        for kind in _KINDS:
            self.seconds[kind] = self.seconds.get(kind, 0.0) + delivery.seconds.get(kind, 0.0)
        if delivery.seconds.get("generate", 0.0) > 0:
            self.tokens += delivery.tokens
        if delivery.made_by:
            self.makers.add(delivery.made_by)
        if delivery.probe_gap is not None:
            self.probe_gap = max(self.probe_gap or 0.0, delivery.probe_gap)
        for name, value in delivery.logged.items():
            self.values.setdefault(name, []).append(value)

    def add_group(self, group: Sequence[BufferItem]) -> None:
        """The samples of one prompt."""
        rewards = [float(item.reward) for item in group if item.reward is not None]
        self.samples += len(group)
        self.without_reward += len(group) - len(rewards)
        if len(rewards) > 1:
            self.groups += 1
            self.groups_without_variance += min(rewards) == max(rewards)
        for item in group:
            self.ended += item.facts.finish_reason is not None
            self.truncated += item.facts.finish_reason == "length"
            for name, value in item.facts.reward_logged.items():
                if not isinstance(value, str):
                    self.reward_values.setdefault(name, []).append(value)

    def metrics(self) -> dict[str, float]:
        """Only what is known; nothing if no lease was consumed."""
        metrics = {f"maker.{kind}_seconds": self.seconds[kind] for kind in _KINDS if self.seconds.get(kind, 0.0) > 0}
        if self.seconds.get("generate", 0.0) > 0:
            metrics["maker.tokens_per_second"] = self.tokens / self.seconds["generate"]
        if self.makers:
            metrics["makers"] = float(len(self.makers))
        if self.probe_gap is not None:
            metrics["maker.probe_gap"] = self.probe_gap
        if self.samples:
            metrics["reward_failed_fraction"] = self.without_reward / self.samples
        if self.groups:
            metrics["reward_zero_std_fraction"] = self.groups_without_variance / self.groups
        if self.ended:
            metrics["truncated_fraction"] = self.truncated / self.ended
        return metrics

    def logged(self) -> dict[str, float]:
        """What rewards and hooks of makers logged: means over the samples or the leases that have a value."""
        of_rewards = {name: math.fsum(values) / len(values) for name, values in self.reward_values.items()}
        return of_rewards | {name: sum(values) / len(values) for name, values in self.values.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "seconds": dict(self.seconds),
            "tokens": self.tokens,
            "makers": sorted(self.makers),
            "samples": self.samples,
            "without_reward": self.without_reward,
            "ended": self.ended,
            "truncated": self.truncated,
            "groups": self.groups,
            "groups_without_variance": self.groups_without_variance,
            "values": {name: list(values) for name, values in self.values.items()},
            "reward_values": {name: list(values) for name, values in self.reward_values.items()},
        }

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> Making:
        known = {
            key: {name: list(own) for name, own in saved.get(key, {}).items()} for key in ("values", "reward_values")
        }
        return cls(**{**saved, "seconds": dict(saved["seconds"]), "makers": set(saved["makers"]), **known})
