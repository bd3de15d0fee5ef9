"""Trainers of a policy: the loop around a `Learner`, which publishes the policy to the makers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ..algorithms import Algorithm
from ..data.experience import BufferItem, Experience
from ..data.loop import ManifestRow
from ..data.masks import action_mask_of
from ..data.sampling import Sampling
from ..learning.group_filter import GroupFilter
from ..learning.learner import Learner, StepSettings
from ..learning.optimizer import OptimizerSettings
from ..lifecycle.spans import Lifecycle
from ..loop.after_step import AfterStep
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

    def training_step(self, experience: Experience) -> dict[str, Any]:
        """One optimizer step; the micro-batches inside give the gradient of the whole batch exactly."""
        metrics = self.learner.step(experience)
        if experience.versions is not None:
            lag_BA = (self.state.policy_version - experience.versions).masked_fill(~action_mask_of(experience), 0)
            metrics["staleness"] = float(lag_BA.max())
        return metrics

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

    def _next_items(self, life: Lifecycle, after: AfterStep) -> list[BufferItem]:
        self.group_filter.start_step()
        return super()._next_items(life, after)

    def _why_empty(self) -> str:
        return self.group_filter.describe_step()

    def _why_idle(self) -> str:
        return self.group_filter.describe_run(self.source.ledger)

    def _why_unmoved(self) -> str:
        is_compared = self.learner.algorithm.min_group > 1
        return ": did all completions of each prompt get the same reward?" if is_compared else ""


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
