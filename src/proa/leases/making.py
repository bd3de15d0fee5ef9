"""What it took to make the leases of a step, as the step's metrics say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..data.lease import Delivery

_KINDS = ("generate", "score", "load", "switch", "wait")
"""Where a maker's time goes before it sends; `switch` is for how long its stream stood still for new weights."""


@dataclass
class Making:
    """Seconds and tokens summed over the leases that were consumed for one step, and how many samples had no reward.

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
    values: dict[str, list[float]] = field(default_factory=dict)
    """What hooks of makers logged, by name."""
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

    def add_scored(self, samples: int, *, without_reward: int) -> None:
        self.samples += samples
        self.without_reward += without_reward

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
        return metrics

    def logged(self) -> dict[str, float]:
        """What hooks of makers logged: means over the leases that have a value."""
        return {name: sum(values) / len(values) for name, values in self.values.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "seconds": dict(self.seconds),
            "tokens": self.tokens,
            "makers": sorted(self.makers),
            "samples": self.samples,
            "without_reward": self.without_reward,
            "values": {name: list(values) for name, values in self.values.items()},
        }

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> Making:
        values = {name: list(own) for name, own in saved.get("values", {}).items()}
        return cls(**{**saved, "seconds": dict(saved["seconds"]), "makers": set(saved["makers"]), "values": values})
