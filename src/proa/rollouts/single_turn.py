"""One completion for each seed of a prompt, scored when all are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..engines.protocol import Request
from .sample import Sample, Turn
from .scoring import ModelReward, scored

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..data.lease import Prompt
    from ..data.sampling import Completion, Sampling
    from ..rewards.score import Scorer
    from .progress import Progress
    from .versioned_engine import VersionedEngine


class SingleTurn:
    """The rollout without an environment: a prompt, a completion, a score."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        *,
        scorer: Scorer | None = None,
        model_reward: ModelReward | None = None,
    ) -> None:
        self.sampling = sampling
        self._tokenizer = tokenizer
        self._scorer = scorer
        self._model_reward = model_reward

    def run(
        self, engine: VersionedEngine, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], progress: Progress
    ) -> list[Sample]:
        """One sample for each seed of each prompt, those of a prompt together, in order."""
        requests = [Request(prompt.tokens, tuple(own)) for prompt, own in zip(prompts, seeds, strict=True)]
        generated = engine.generate(requests, self.sampling, progress)
        with progress.scoring():
            samples = [
                Sample(prompt, index, seed, (self._turn(prompt, completion, generated.version),))
                for prompt, own, group in zip(prompts, seeds, generated.completions, strict=True)
                for index, (seed, completion) in enumerate(zip(own, group, strict=True))
            ]
            return scored(samples, self._scorer, self._model_reward)

    def _turn(self, prompt: Prompt, completion: Completion, version: int) -> Turn:
        text = str(self._tokenizer.decode(completion.tokens.tolist(), skip_special_tokens=True))
        return Turn(prompt.tokens, completion, version, text)
