"""Scores of samples: by functions, which read text, and by a reward model, which reads the sampled tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ..data.reward_limits import fault_of
from ..policy.reward_model import sequence_scores
from ..rewards.score import Score, Scorer, add_part
from .sample import join_turns

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
        answers = [sample.answer() for sample in samples]
        scores = scorer.score([prompt.text for prompt in prompts], answers, columns)
    if model_reward is not None:
        values = model_reward.score([sample.turns[-1].tokens for sample in samples])
        scores = add_part(scores, "reward_model", values, model_reward.weight)
    return [replace(sample, score=_usable(score)) for sample, score in zip(samples, scores, strict=True)]


def scored_trajectories(
    samples: Sequence[Sample], scorer: Scorer | None, model_reward: ModelReward | None, *, adds_given: bool = True
) -> list[Sample]:
    """The samples with their scores: what rewards say of those that ended by themselves, and, with `adds_given`, what
    their environments gave. The others have none."""
    scores = dict.fromkeys((sample.uid for sample in samples), Score(None, applies=False))
    scores |= {
        sample.uid: sample.score for sample in scored([one for one in samples if _is_scored(one)], scorer, model_reward)
    }
    has_rewards = scorer is not None or model_reward is not None
    return [
        _with_own_rewards(sample, scores[sample.uid], has_rewards=has_rewards, adds_given=adds_given)
        if _is_scored(sample)
        else sample
        for sample in samples
    ]


def _is_scored(sample: Sample) -> bool:
    return sample.is_own_ending and bool(sample.turns)


def _with_own_rewards(sample: Sample, score: Score, *, has_rewards: bool, adds_given: bool) -> Sample:
    """What the environment gave is a part of the score. Where nothing else scores, a trajectory that ran out of turns
    or tokens before it was given anything has earned 0; one that its environment ended without a reward has none."""
    facts = sample.facts
    assert facts is not None, "it has an environment"
    given = [reward for reward in facts.turn_rewards if reward is not None and adds_given]
    if given or (not has_rewards and facts.ending != "finished"):
        [score] = add_part([score], "environment", [math.fsum(given)], weight=1.0)
    if has_rewards and score.value is None and score.applies:
        facts = replace(facts, ending="grader_failed")
    if not has_rewards and score.value is None and score.error is None:
        score = replace(score, error="its environment ended it without a reward, and no reward function scores it")
    return replace(sample, score=score, facts=facts)


def _sampled(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """What is known of sampling, as columns: the tokens before and after the first that was sampled, of the row that a
    sample ended in, and the weights' version."""
    last = [[sample.turns[number] for number in join_turns(sample.turns)[-1]] for sample in samples]
    return {
        "prompt_ids": [list(row[0].prompt) for row in last],
        "completion_ids": [list(row[-1].tokens[len(row[0].prompt) :]) for row in last],
        "policy_version": [sample.version for sample in samples],
    }


def _usable(score: Score) -> Score:
    """A scorer of the user's own may give anything."""
    fault = "" if score.value is None else fault_of(score.value)
    return replace(score, value=None, error=f"the reward is {score.value}, {fault}") if fault else score
