"""Trainers of a policy: the loop around a `Learner`, which publishes the policy to the makers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ..algorithms import Algorithm
from ..data.experience import Experience
from ..data.loop import ManifestRow, TrainingBatch
from ..data.masks import action_mask_of
from ..data.sampling import Sampling
from ..learning.gradients import show_gradients
from ..learning.group_filter import GroupFilter
from ..learning.learner import Learner, StepSettings
from ..learning.optimizer import OptimizerSettings
from ..policy.critic import Critic
from ..policy.lora_policy import as_policy
from ..policy.policy import Policy
from .trainer import DetachedTrainer
from .weights import WeightStore


class PolicyTrainer(DetachedTrainer):
    """Takes a learner's step on each batch, and publishes its policy under the next version after each episode."""

    def __init__(
        self,
        learner: Learner,
        *,
        store: WeightStore,
        experience_maker_holder_name_list: Sequence[str] = (),
        **trainer: Any,
    ) -> None:
        super().__init__(experience_maker_holder_name_list, replicas=learner.replicas, **trainer)
        self.learner = learner
        self.policy = learner.policy
        self.store = store
        self.group_filter = GroupFilter(learner.algorithm)
        learner.activity = self.activity
        settings = dataclasses.fields(learner.algorithm)
        self._algorithm_settings = {field.name: getattr(learner.algorithm, field.name) for field in settings}

    def training_step(self, experience: Experience) -> dict[str, Any]:
        """One optimizer step; the micro-batches inside give the gradient of the whole batch exactly."""
        found = self.learner.find_gradients(experience)
        show_gradients(self.manager, self.state, self.learner.gradients)
        metrics = self.learner.take_step(experience, found)
        if experience.versions is not None:
            lag_BA = (self.state.policy_version - experience.versions).masked_fill(~action_mask_of(experience), 0)
            metrics["staleness"] = float(lag_BA.max())
        return metrics

    def _training_batch(self, experience: Experience) -> TrainingBatch:
        return TrainingBatch(experience, self.learner.algorithm.name, dict(self._algorithm_settings))

    def _update_remote_makers(self, fully_update: bool = False, **kwargs: Any) -> None:
        """Publish the policy under the next version; makers fetch it when a lease names it."""
        weights = self.policy.published()  # every rank takes part, and rank 0 has them all
        if self.replicas.rank == 0:
            self.store.publish(self.state.policy_version + 1, weights)
            self.store.retire(but=self.source.versions_in_use())

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | self.learner.state_dict() | self.group_filter.state_dict()

    def load_state_dict(self, saved: Mapping[str, Any], row: ManifestRow | None = None) -> None:
        super().load_state_dict(saved, row)
        self.learner.load_state_dict(saved)
        self.group_filter.load_state_dict(saved)

    @property
    def _device(self) -> torch.device | str:
        return self.policy.device

    def _why_empty(self) -> str:
        if self.group_filter.last_reward_error:
            return f"; the last sample without a reward said: {self.group_filter.last_reward_error}"
        return ": no group has two completions with different rewards"

    def _why_idle(self) -> str:
        failed, first = self.source.ledger.failed_rewards, self.group_filter.first_reward_error
        if failed and first:
            return f"; {failed} samples had no usable reward, the first because: {first}"
        return super()._why_idle()


class DetachedGRPOTrainer(PolicyTrainer):
    """Trains a policy by comparing completions with one another: GRPO, Dr.GRPO, DAPO, RLOO, GSPO, CISPO, …

    `optimizer_steps` is how many optimizer steps the run will make; the learning-rate schedule needs it.
    """

    def __init__(
        self,
        model: PreTrainedModel | Policy,
        *,
        algorithm: Algorithm,
        sampling: Sampling,
        optimizer: OptimizerSettings,
        optimizer_steps: int,
        settings: StepSettings | None = None,
        **trainer: Any,
    ) -> None:
        learner = Learner(
            model if isinstance(model, Policy) else as_policy(model),
            algorithm,
            optimizer,
            replicas=trainer.pop("replicas", None),
            optimizer_steps=optimizer_steps,
            sampling=sampling,
            settings=settings,
        )
        super().__init__(learner, **trainer)


class DetachedPPOTrainer(PolicyTrainer):
    """Trains a policy by PPO: a critic says what was to be expected, and tokens are credited with the difference.

    A critic that shares the policy's decoder learns with the policy's optimizer; one with a decoder of its own has
    its own (`critic_optimizer`). Only the policy is published.
    """

    def __init__(
        self,
        model: PreTrainedModel | Policy,
        *,
        critic: Critic,
        algorithm: Algorithm,
        sampling: Sampling,
        optimizer: OptimizerSettings,
        optimizer_steps: int,
        critic_optimizer: OptimizerSettings | None = None,
        settings: StepSettings | None = None,
        **trainer: Any,
    ) -> None:
        learner = Learner(
            model if isinstance(model, Policy) else as_policy(model),
            algorithm,
            optimizer,
            critic,
            replicas=trainer.pop("replicas", None),
            optimizer_steps=optimizer_steps,
            sampling=sampling,
            settings=settings,
            critic_optimizer=critic_optimizer,
        )
        super().__init__(learner, **trainer)
