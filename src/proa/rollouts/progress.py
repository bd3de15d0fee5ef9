"""What a rollout is doing, for whoever looks at its actor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from ..actors.activity import Activity


@dataclass(frozen=True)
class Progress:
    """Shows whoever looks at an actor what its rollout is doing, and counts the time."""

    work: str
    """What the samples are for, e.g. `lease 12`."""
    activity: Activity = field(default_factory=Activity)
    one_scores: AbstractContextManager[object] = field(default_factory=nullcontext)
    """A lock of those of whom only one scores at a time: rewards need not care for threads."""

    def generating(self) -> AbstractContextManager[None]:
        return self.activity.doing("generate", f"generating {self.work}")

    @contextlib.contextmanager
    def scoring(self) -> Iterator[None]:
        with self.one_scores, self.activity.doing("score", f"scoring {self.work}"):
            yield
