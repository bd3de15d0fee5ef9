"""The ledger: where every sample is. It closes at all times.

leased = trained + buffered + in_flight + sum(dropped.values())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..data.experience import BufferItem


@dataclass
class Ledger:
    """Counts samples (and, from delivery on, completion tokens). Its owner guards it with a lock.

    >>> ledger = Ledger()
    >>> ledger.lease(4)
    >>> ledger.deliver(4, tokens=40)
    >>> ledger.train(3, tokens=30)
    >>> ledger.drop(1, "zero_variance", tokens=10)
    >>> ledger.closes, ledger.leased, ledger.trained, ledger.dropped
    (True, 4, 3, {'zero_variance': 1})
    """

    leased: int = 0
    in_flight: int = 0
    buffered: int = 0
    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("made", "buffered", "trained", "dropped"), 0))

    def lease(self, samples: int) -> None:
        """Samples were handed out for the first time; handing them to another maker later changes nothing."""
        self.leased += samples
        self.in_flight += samples

    def deliver(self, samples: int, *, tokens: int) -> None:
        self.in_flight -= samples
        self.buffered += samples
        self.tokens["made"] += tokens
        self.tokens["buffered"] += tokens

    def train(self, samples: int, *, tokens: int) -> None:
        self.buffered -= samples
        self.trained += samples
        self.tokens["buffered"] -= tokens
        self.tokens["trained"] += tokens

    def drop(self, samples: int, reason: str, *, tokens: int) -> None:
        """Delivered samples will not be trained."""
        if samples:
            self.buffered -= samples
            self.dropped[reason] = self.dropped.get(reason, 0) + samples
            self.tokens["buffered"] -= tokens
            self.tokens["dropped"] += tokens

    def lose(self, samples: int, reason: str) -> None:
        """Samples handed out will not be delivered."""
        self.in_flight -= samples
        self.dropped[reason] = self.dropped.get(reason, 0) + samples

    def abandon(self, reason: str, *, but: int = 0, but_tokens: int = 0) -> None:
        """The run is over: drop everything not trained, for that reason, except what is being trained (`but`)."""
        left = self.buffered - but + self.in_flight
        if left:
            self.dropped[reason] = self.dropped.get(reason, 0) + left
        self.buffered, self.in_flight = but, 0
        self.tokens["dropped"] += self.tokens["buffered"] - but_tokens
        self.tokens["buffered"] = but_tokens

    @property
    def failed_rewards(self) -> int:
        """Samples that were dropped because they had no usable reward."""
        return sum(self.dropped.get(reason, 0) for reason in ("reward_failed", "grader_failed", "no_reward"))

    @property
    def closes(self) -> bool:
        samples = self.trained + self.buffered + self.in_flight + sum(self.dropped.values())
        tokens = self.tokens["trained"] + self.tokens["buffered"] + self.tokens["dropped"]
        return self.leased == samples and self.tokens["made"] == tokens

    def load(self, saved: Mapping[str, Any]) -> None:
        """Continue from counts that `as_dict` gave."""
        for name in ("leased", "trained", "buffered", "in_flight"):
            setattr(self, name, saved[name])
        self.dropped, self.tokens = dict(saved["dropped"]), dict(saved["tokens"])

    def as_dict(self) -> dict[str, Any]:
        return {
            "leased": self.leased,
            "trained": self.trained,
            "buffered": self.buffered,
            "in_flight": self.in_flight,
            "dropped": dict(self.dropped),
            "tokens": dict(self.tokens),
        }


def tokens_in(items: Iterable[BufferItem]) -> int:
    """Sampled tokens."""
    return sum(item.sampled_length for item in items)
