"""How the leases of a step were made, and how their samples turned out, for the step's metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..data.experience import BufferItem
from ..data.facts import TrajectoryFacts
from ..data.lease import Delivery
from ..data.trajectories import split_samples

_KINDS = ("generate", "score", "load", "switch", "wait")
"""Kinds of a maker's time before it sends; `switch` is the time its stream paused for new weights."""


@dataclass
class Making:
    """Seconds and tokens summed over the leases consumed for one step, and statistics of their samples before
    filtering.

    >>> making = Making()
    >>> making.add(Delivery(0, (), "maker_0", {"generate": 2.0}))
    >>> making.add(Delivery(1, (), "maker_1", {"generate": 1.0}))
    >>> making.metrics()
    {'maker.generate_seconds': 3.0, 'maker.tokens_per_second': 0.0, 'makers': 2.0}
    """

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    """Of the deliveries with a generation time."""
    makers: set[str] = field(default_factory=set)
    samples: int = 0
    without_reward: int = 0
    ended: int = 0
    """Samples with a finish reason."""
    truncated: int = 0
    groups: int = 0
    """With two rewards or more."""
    groups_without_variance: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)
    """Values that hooks of makers logged, by name."""
    reward_values: dict[str, list[float]] = field(default_factory=dict)
    """Values that rewards logged, by name, one for each sample."""
    trajectories: TrajectoryTotals = field(default_factory=lambda: TrajectoryTotals())
    probe_gap: float | None = None
    """The largest gap between the trainer and an engine; reported, and not saved."""

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
        samples = [rows[-1] for rows in split_samples(group)]  # the last row has the sample's facts
        rewards = [float(item.reward) for item in samples if item.reward is not None]
        self.samples += len(samples)
        self.without_reward += len(samples) - len(rewards)
        if len(rewards) > 1:
            self.groups += 1
            self.groups_without_variance += min(rewards) == max(rewards)
        for item in samples:
            self.ended += item.facts.finish_reason is not None
            self.truncated += item.facts.finish_reason == "length"
            for name, value in item.facts.reward_logged.items():
                if not isinstance(value, str):
                    self.reward_values.setdefault(name, []).append(value)
            if item.facts.trajectory is not None:
                self.trajectories.add(item.facts.trajectory)
                self.trajectories.sampled_tokens += sum(row.sampled_length for row in group if row.uid == item.uid)

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
        return metrics | self.trajectories.metrics()

    def logged(self) -> dict[str, float]:
        """Means of what rewards and hooks of makers logged, over the samples or leases that have a value."""
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
            "trajectories": asdict(self.trajectories),
        }

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> Making:
        known = {
            key: {name: list(own) for name, own in saved.get(key, {}).items()} for key in ("values", "reward_values")
        }
        totals = TrajectoryTotals(**saved.get("trajectories", {}))
        own = {"seconds": dict(saved["seconds"]), "makers": set(saved["makers"]), "trajectories": totals}
        return cls(**{**saved, **own, **known})


@dataclass
class TrajectoryTotals:
    """Sums over the samples of a step that had an environment."""

    count: int = 0
    endings: dict[str, int] = field(default_factory=dict)
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    sampled_tokens: int = 0
    environment_tokens: int = 0
    environment_seconds: float = 0.0

    def add(self, facts: TrajectoryFacts) -> None:
        self.count += 1
        self.endings[facts.ending] = self.endings.get(facts.ending, 0) + 1
        self.turns += facts.turns
        self.tool_calls += facts.tool_calls
        self.tool_errors += facts.tool_errors
        self.environment_tokens += facts.environment_tokens
        self.environment_seconds += facts.environment_seconds

    def metrics(self) -> dict[str, float]:
        """Means over trajectories; each ending that occurred as a share of them."""
        if not self.count:
            return {}
        return {
            "trajectory.turns": self.turns / self.count,
            **{f"trajectory.ending.{name}": count / self.count for name, count in sorted(self.endings.items())},
            "trajectory.tool_calls": self.tool_calls / self.count,
            "trajectory.tool_error_fraction": self.tool_errors / max(1, self.tool_calls),
            "trajectory.policy_tokens": self.sampled_tokens / self.count,
            "trajectory.environment_tokens": self.environment_tokens / self.count,
            "trajectory.environment_seconds": self.environment_seconds / self.count,
        }
