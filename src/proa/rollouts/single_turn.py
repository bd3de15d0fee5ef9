"""One completion for each seed of a prompt, scored when all are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..engines.generating import group_requests
from ..engines.stop_strings import StopStrings
from .sample import Sample, Turn
from .scoring import ModelReward, scored

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..data.lease import Prompt
    from ..data.sampling import Completion, Sampling
    from ..rewards.score import Scorer
    from .progress import Progress
    from .rollout import SamplingEngine


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
        self._stop_strings = StopStrings(sampling.stop, tokenizer) if sampling.stop else None
        self._scorer = scorer
        self._model_reward = model_reward

    def run(
        self, engine: SamplingEngine, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], progress: Progress
    ) -> list[Sample]:
        """One sample for each seed of each prompt, those of a prompt together, in order."""
        requests = [
            request
            for prompt, own in zip(prompts, seeds, strict=True)
            for request in group_requests(
                str(prompt.ordinal), prompt.tokens, own, self.sampling, stop_strings=self._stop_strings
            )
        ]
        generated = engine.generate(requests, progress)
        with progress.scoring():
            completions = iter(generated.completions)
            samples = [
                Sample(prompt, index, seed, (self._turn(prompt, next(completions), generated.version),))
                for prompt, own in zip(prompts, seeds, strict=True)
                for index, seed in enumerate(own)
            ]
            return scored(samples, self._scorer, self._model_reward)

    def _turn(self, prompt: Prompt, completion: Completion, version: int) -> Turn:
        text = str(self._tokenizer.decode(completion.tokens.tolist(), skip_special_tokens=True))
        return Turn(prompt.tokens, completion, version, text)
