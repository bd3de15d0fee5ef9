"""What a rollout is: it takes an engine, prompts and seeds, and gives samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..data.lease import Prompt
    from ..data.sampling import Sampling
    from ..engines.protocol import Request
    from .progress import Progress
    from .sample import Sample
    from .versioned_engine import Generated


class SamplingEngine(Protocol):
    """An engine as a rollout sees it: with weights of one version, whoever else uses it."""

    def generate(self, requests: Sequence[Request], progress: Progress) -> Generated:
        """A completion for each request, in order."""
        ...


class Rollout(Protocol):
    """A way to get scored samples of prompts: one completion each, or many turns with an environment.

    What a sample holds follows from the weights, its prompt and its seed, whatever else is in the call.
    """

    @property
    def sampling(self) -> Sampling: ...

    def run(
        self, engine: SamplingEngine, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], progress: Progress
    ) -> list[Sample]:
        """One sample for each seed of each prompt, those of a prompt together, in order."""
        ...
