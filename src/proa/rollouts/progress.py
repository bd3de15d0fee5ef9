"""What a rollout is doing, for whoever looks at its actor."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ..actors.activity import Activity


@dataclass(frozen=True)
class Progress:
    """Shows whoever looks at an actor what its rollout is doing, and counts the time."""

    work: str
    """What the samples are for, e.g. `lease 12`."""
    activity: Activity = field(default_factory=Activity)

    def generating(self) -> AbstractContextManager[None]:
        return self.activity.doing("generate", f"generating {self.work}")

    def scoring(self) -> AbstractContextManager[None]:
        return self.activity.doing("score", f"scoring {self.work}")
