"""What a rollout is: it takes an engine, prompts and seeds, and gives samples."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..actors.activity import Activity

if TYPE_CHECKING:
    from ..data.lease import Prompt
    from ..data.sampling import Sampling
    from .sample import Sample
    from .versioned_engine import VersionedEngine


class Rollout(Protocol):
    """A way to get scored samples of prompts: one completion each, or many turns with an environment.

    What a sample holds follows from the weights, its prompt and its seed, whatever else is in the call.
    """

    @property
    def sampling(self) -> Sampling: ...

    def run(
        self, engine: VersionedEngine, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], progress: Progress
    ) -> list[Sample]:
        """One sample for each seed of each prompt, those of a prompt together, in order."""
        ...


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
