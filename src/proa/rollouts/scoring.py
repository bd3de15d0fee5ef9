"""Scores of samples: by functions, which read text, and by a reward model, which reads the sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ..data.reward_limits import fault_of
from ..policy.reward_model import sequence_scores
from ..rewards.score import Score, Scorer, add_part

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .sample import Sample


@dataclass(frozen=True)
class ModelReward:
    """A reward model's part in the reward."""

    model: PreTrainedModel
    weight: float = 1.0
    token_budget: int = 16_384

    def score(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """From prompts with their completions, as tokens, to one number each."""
        with torch.no_grad():
            scores: list[float] = sequence_scores(self.model, sequences, token_budget=self.token_budget).tolist()
        return scores


def scored(samples: Sequence[Sample], scorer: Scorer | None, model_reward: ModelReward | None) -> list[Sample]:
    """The samples with their scores; without a scorer and a model they stay unscored."""
    if not samples:
        return []
    scores = [sample.score for sample in samples]
    if scorer is not None:
        prompts = [sample.prompt for sample in samples]
        columns = {name: [prompt.columns[name] for prompt in prompts] for name in prompts[0].columns}
        columns = _sampled(samples) | columns
        answers = [_answer(sample) for sample in samples]
        scores = scorer.score([prompt.text for prompt in prompts], answers, columns)
    if model_reward is not None:
        last = [sample.turns[-1] for sample in samples]
        values = model_reward.score([(*turn.prompt, *turn.completion.tokens.tolist()) for turn in last])
        scores = add_part(scores, "reward_model", values, model_reward.weight)
    return [replace(sample, score=_usable(score)) for sample, score in zip(samples, scores, strict=True)]


def _sampled(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """What is known of sampling, as columns: the tokens before and in the last turn, and the weights' version."""
    last = [sample.turns[-1] for sample in samples]
    return {
        "prompt_ids": [list(turn.prompt) for turn in last],
        "completion_ids": [turn.completion.tokens.tolist() for turn in last],
        "policy_version": [turn.version for turn in last],
    }


def _answer(sample: Sample) -> Any:
    """The text in the form of the prompt: as text, or as the assistant's message."""
    return sample.text if isinstance(sample.prompt.text, str) else [{"role": "assistant", "content": sample.text}]


def _usable(score: Score) -> Score:
    """A scorer of the user's own may give anything."""
    fault = "" if score.value is None else fault_of(score.value)
    return replace(score, value=None, error=f"the reward is {score.value}, {fault}") if fault else score
