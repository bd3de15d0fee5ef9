"""A maker's half of a run: engine, rewards, and the maker that has them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from ..config import ConfigError, DetachedConfig
from ..data.sampling import Sampling
from ..engines import build_engine
from ..lifecycle.hooks import BaseCallback
from ..model_shape import context_length
from ..policy.material import Material
from ..policy.models import ModelError, weights_digest
from ..policy.reward_model import check_same_tokenizer, load_reward_model, sequence_scores
from ..policy.whole import WholeWeights
from ..resume.inputs import Inputs
from ..rewards import InlineRewards, RewardWorkers
from ..rewards.function import load_rewards
from ..rewards.identity import identity
from ..roles.maker import ExperienceMakerHolder, ModelReward
from ..tasks import Task
from .given import Given
from .material import load_tokenizer


class MakerSide:
    """What makers of one process share. What is wrong with rewards is found when it is built."""

    def __init__(
        self, config: DetachedConfig, given: Given, *, task: Task, material: Material, longest_prompt: int = 0
    ) -> None:
        self.config = config
        self.material = material
        self.scorer = _scorer(config, given, task)
        self.reward_model = _reward_model(config, material, longest_prompt)
        self._rewards = rewards_for(config, given, task)

    def add_to(self, inputs: Inputs) -> Inputs:
        """What a run works on, with its rewards."""
        functions = [] if self._rewards is None else load_rewards(self._rewards)
        return replace(
            inputs,
            rewards={one.name: identity(one.function) for one in functions},
            reward_model="" if self.reward_model is None else weights_digest(self.reward_model.state_dict()),
        )

    def make(
        self, name: str, scorer: Any, callbacks: Sequence[BaseCallback], whole_weights: WholeWeights | None
    ) -> ExperienceMakerHolder:
        """A maker with an engine of its own; `scorer` is what `self.scorer` gave when it was entered."""
        config, material = self.config, self.material
        decode = material.tokenizer.decode
        return ExperienceMakerHolder(
            engine=build_engine(
                config.engine.kind, material.model, end_ids=material.end_ids, slots=config.engine.slots
            ),
            decode=lambda ids: str(decode(list(ids), skip_special_tokens=True)),
            scorer=scorer,
            sampling=sampling_of(config),
            model_reward=_model_reward(config, self.reward_model),
            whole_weights=whole_weights,
            callbacks=callbacks,
            name=name,
            seed=config.seed,
        )


def sampling_of(config: DetachedConfig) -> Sampling:
    return Sampling(**config.sampling.model_dump())


def _reward_model(config: DetachedConfig, material: Material, longest_prompt: int) -> PreTrainedModel | None:
    section = config.reward.model
    if section is None:
        return None
    return reward_model_for(config, material, longest_prompt, section.path).requires_grad_(False)


def _model_reward(config: DetachedConfig, model: PreTrainedModel | None) -> ModelReward | None:
    section = config.reward.model
    if section is None or model is None:
        return None

    def score(sequences: Any) -> list[float]:
        with torch.no_grad():
            scores: list[float] = sequence_scores(model, sequences, token_budget=section.token_budget).tolist()
        return scores

    return ModelReward(score, section.weight)


def reward_model_for(config: DetachedConfig, material: Material, longest_prompt: int, folder: str) -> PreTrainedModel:
    """A reward model that reads what this policy writes."""
    own = config.model
    model = load_reward_model(
        folder, dtype=own.dtype, device=own.device, trust_remote_code=own.trust_remote_code
    )  # fmt: skip
    check_same_tokenizer(material.tokenizer, load_tokenizer(folder, own.trust_remote_code))
    context = context_length(model.config)
    longest = longest_prompt + config.sampling.max_new_tokens
    if context is not None and longest > context:
        raise ModelError(
            f"the reward model in {folder} reads {context} tokens, and a prompt with its completion may have {longest}"
        )
    return model


def rewards_for(config: DetachedConfig, given: Given, task: Task) -> Any:
    """The functions that score: those given, or the task's own; None if it is the reward model alone."""
    rewards: Any = given.rewards or config.reward.functions
    if not rewards and config.reward.model is not None:
        return None
    rewards = rewards or task.reward
    if not rewards:
        raise ConfigError(f"the task {task.name} brings no reward: give reward.functions, or a reward.model")
    return list(rewards) if isinstance(rewards, tuple) else rewards


def _scorer(config: DetachedConfig, given: Given, task: Task) -> AbstractContextManager[Any]:
    rewards = rewards_for(config, given, task)
    if rewards is None:
        return nullcontext()
    scorer: InlineRewards | RewardWorkers
    if config.reward.workers == 0:
        scorer = InlineRewards(rewards, weights=config.reward.weights)
    else:
        scorer = RewardWorkers(
            rewards, weights=config.reward.weights, timeout=config.reward.timeout, workers=config.reward.workers
        )
    if task.rows:
        scorer.check(task.rows[0].columns)  # a misspelt column is found now, not at the first score
    return scorer if isinstance(scorer, RewardWorkers) else nullcontext(scorer)
