"""A maker's half of a run: engine, rewards, and the maker that has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from ..config import ConfigError, DetachedConfig
from ..config.sections import EngineSection
from ..engines.cache import BLOCK, blocks_for
from ..engines.native import SLOTS
from ..engines.product_shapes import padded
from ..evals.evaluation import run_length
from ..lifecycle.hooks import BaseCallback
from ..model_shape import cache_bytes
from ..policy.models import read_dtype, weights_digest
from ..policy.policy import Policy, Receiver
from ..resume.inputs import Inputs
from ..rewards import InlineRewards, RewardWorkers
from ..rewards.function import load_rewards
from ..rewards.identity import identity
from ..roles.maker import ExperienceMakerHolder
from ..roles.surroundings import surroundings_of
from ..rollouts import ModelReward, Rollout, SingleTurn
from ..tasks import Task
from .given import Given
from .loading import check_device, load_matching_reward_model, make_sampling


class MakerSide:
    """What makers of one process share. The constructor raises for unusable rewards, or a model that the engine does
    not support. Makers work inside a `with`, which ends the processes of reward functions."""

    def __init__(
        self, config: DetachedConfig, given: Given, *, task: Task, policy: Policy, longest_prompt: int = 0
    ) -> None:
        self.config = config
        self.policy = policy
        self._longest_prompt = longest_prompt
        self._device = config.model.device if policy.device.type == "meta" else None  # where its weights will be
        config.engine.check(policy.model)
        if config.engine.device is not None:
            check_device(config.engine.device, "engine.device")
        self._rewards = select_rewards(config, given, task)
        self._scorer = None if self._rewards is None else _scorer(config, self._rewards, task)
        self._surroundings = surroundings_of(config, policy, given.surroundings)
        section = config.reward.model
        self.reward_model: PreTrainedModel | None = None
        if section is not None:
            loaded = load_matching_reward_model(config, policy.tokenizer, longest_prompt, section.path)
            self.reward_model = loaded.requires_grad_(False)

    def __enter__(self) -> MakerSide:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._scorer, RewardWorkers):
            self._scorer.close()
        if self._surroundings is not None:
            self._surroundings.close()

    def complete_inputs(self, inputs: Inputs) -> Inputs:
        """The inputs of a run, completed with its rewards."""
        functions = [] if self._rewards is None else load_rewards(self._rewards)
        return replace(
            inputs,
            rewards={one.name: identity(one.function) for one in functions},
            reward_model="" if self.reward_model is None else weights_digest(self.reward_model.state_dict()),
        )

    def make(self, name: str, callbacks: Sequence[BaseCallback], receiver: Receiver) -> ExperienceMakerHolder:
        """A maker with an engine of its own."""
        config, policy = self.config, self.policy
        maker = ExperienceMakerHolder(
            engine=self._engine_section().make(policy.model, policy.end_ids, self._device),
            rollout=self._rollout(),
            receiver=receiver,
            callbacks=callbacks,
            name=name,
            seed=config.seed,
        )
        maker.engine_sleeps = config.engine.sleep is True
        return maker

    def _rollout(self) -> Rollout:
        config, tokenizer, section, model_reward = self.config, self.policy.tokenizer, self.config.reward.model, None
        if section is not None and self.reward_model is not None:
            model_reward = ModelReward(self.reward_model, section.weight, section.token_budget)
        if self._surroundings is not None:
            return self._surroundings.rollout(make_sampling(config), scorer=self._scorer, model_reward=model_reward)
        return SingleTurn(tokenizer, make_sampling(config), scorer=self._scorer, model_reward=model_reward)

    def _engine_section(self) -> EngineSection:
        section = self.config.engine
        device = torch.device(section.device or self._device or self.policy.device)
        if section.factory != "native" or device.type != "cuda" or not self._longest_prompt:
            return section
        quarter = torch.cuda.get_device_properties(device).total_memory // 4
        itemsize = read_dtype(section.dtype).itemsize if section.dtype else self.policy.model.dtype.itemsize
        return size_engine(
            self.config, self._longest_prompt, quarter // cache_bytes(self.policy.model.config, itemsize)
        )


def size_engine(config: DetachedConfig, longest_prompt: int, most_tokens: int = 2**62) -> EngineSection:
    """The native engine on a GPU, whose memory it shares with the trainer: no more rows, and no larger cache, than the
    run can use, and at most `most_tokens` cached. Values that are set stay."""
    admitted = (1 + config.max_staleness) * config.update_steps * config.train_batch_size
    slots = config.engine.slots or min(SLOTS["cuda"], padded(admitted))
    longest = blocks_for(longest_prompt + config.sampling.max_new_tokens) * BLOCK
    waiting = slots // 8  # requests whose prompts are in the cache before they have a row
    tokens = config.engine.cache_tokens or max(longest, min((slots + waiting) * longest, most_tokens))
    return config.engine.model_copy(update={"slots": slots, "cache_tokens": tokens})


def select_rewards(config: DetachedConfig, given: Given, task: Task) -> Any:
    """The reward functions: those given, or the task's own. None if only a reward model scores, or an environment,
    which replaces the task's rewards."""
    rewards: Any = given.rewards or config.reward.functions
    if not rewards and config.reward.model is not None:
        return None
    rewards = rewards or (None if config.environment.path or config.agent else task.reward)
    if not rewards and config.has_environment:
        return None  # the environment gives the reward
    if not rewards:
        raise ConfigError(
            f"the task {task.name} brings no reward: give reward, one or several functions (in a file, "
            "my_module:my_reward), or reward.model"
        )
    return list(rewards) if isinstance(rewards, tuple) else rewards


def _scorer(config: DetachedConfig, rewards: Any, task: Task) -> InlineRewards | RewardWorkers:
    scorer: InlineRewards | RewardWorkers
    if config.reward.workers == 0:
        scorer = InlineRewards(rewards, weights=config.reward.weights, length=run_length(config))
    else:
        scorer = RewardWorkers(
            rewards, weights=config.reward.weights, timeout=config.reward.timeout, workers=config.reward.workers,
            length=run_length(config),
        )  # fmt: skip
    if task.rows:
        scorer.check(task.rows[0].columns)  # a misspelt column is found now, not at the first score
    return scorer
