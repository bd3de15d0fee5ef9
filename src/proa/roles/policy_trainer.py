"""What every trainer of a policy does with a batch, whatever the algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from transformers import PreTrainedModel

from ..algorithms import Algorithm, Credit, CreditInputs, TokenLossInputs
from ..data.experience import BufferItem, Experience
from ..data.loop import ManifestRow
from ..data.sampling import Sampling
from ..errors import SettingError
from ..learning.optimizer import Optimizer, OptimizerSettings
from ..learning.replicas import added_up, same_gradients
from ..leases.plan import FilteredGroup
from ..maths.importance import log_ratio, truncated_importance
from ..policy.log_probs import ActionStatistics, action_statistics
from ..policy.lora import trained_weights
from ..policy.micro_batches import deal_rows, plan_micro_batches, take_rows
from ..policy.reference import reference_of
from ..policy.shared_prompts import shared_lengths, shared_prompt_statistics
from .trainer import DetachedTrainer
from .weights import WeightStore


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """How a step is computed, whatever the algorithm."""

    token_budget: int = 16_384
    """Tokens, padding included, of one micro-batch; 0 is the whole batch at once."""
    old: Literal["sampler", "trainer"] = "sampler"
    """What the ratio is taken against: what the sampler recorded, or the trainer's own first pass."""
    importance_cap: float = 2.0
    """With `old="trainer"`: the most that a token's mismatch with the sampler may weigh."""
    share_prompts: bool = False
    """Compute a prompt once for its group instead of once for each completion."""


class PolicyTrainer(DetachedTrainer):
    """Takes an optimizer step on a policy for each batch, as an algorithm says, and publishes the policy.

    `optimizer_steps` is how many optimizer steps the run will make; the learning-rate schedule needs it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        algorithm: Algorithm,
        sampling: Sampling,
        optimizer: OptimizerSettings,
        optimizer_steps: int,
        store: WeightStore,
        settings: StepSettings | None = None,
        experience_maker_holder_name_list: Sequence[str] = (),
        **trainer: Any,
    ) -> None:
        super().__init__(experience_maker_holder_name_list, **trainer)
        self.model = model
        self.algorithm = algorithm
        self.sampling = sampling
        self.optimizer = Optimizer(self._trained_with_the_policy(), optimizer, optimizer_steps)
        self.store = store
        self.settings = settings or StepSettings()
        self._last_reward_error = ""
        self.first_reward_error = ""
        """What the first sample without a reward said of why."""
        self.keep_log_probs = False
        """Whether to keep what the policy gave the tokens of a step's batch, for the record."""
        self.log_probs_in_step: torch.Tensor | None = None
        """These, as (B, A); NaN in rows that another trainer computes."""
        self._reference = reference_of(model) if algorithm.needs_reference else None

    def training_step(self, experience: Experience) -> dict[str, Any]:
        """One optimizer step; the micro-batches inside give the gradient of the whole batch exactly."""
        experience.to_device(self.model.device)
        if experience.old_log_probs is None:
            self._prepare(experience)
        mask_BA = action_mask_of(experience)
        weights_BA = self.algorithm.token_weights(mask_BA, self.sampling.max_new_tokens)
        self._zero_grad()
        with self.activity.doing("compute", f"computing step {self.state.global_step}"):
            own = self._gradients(experience, weights_BA)
        loss, sums = self._with_the_others(*own)
        tokens = max(1, int(mask_BA.sum()))
        return {
            "loss": loss,
            **self._optimizer_step(math.isfinite(loss)),
            **self._describe(experience, mask_BA),
            **{name: value / tokens for name, value in sums.items()},
        }

    def _gradients(self, experience: Experience, weights_BA: torch.Tensor) -> tuple[float, dict[str, float]]:
        """Those of this trainer's rows, with their share of the loss and of the statistics."""
        loss = 0.0
        sums: dict[str, float] = {}
        kept_BA = torch.full_like(experience.action_log_probs, float("nan")) if self.keep_log_probs else None
        self.log_probs_in_step = kept_BA
        for rows in self._micro_batches(experience):
            micro_loss, statistics = self._micro_batch(take_rows(experience, rows), weights_BA[rows])
            loss += micro_loss
            for name, value in statistics.items():
                sums[name] = sums.get(name, 0.0) + value
            if kept_BA is not None:
                kept_BA[rows, : self._micro_log_probs.shape[1]] = self._micro_log_probs.to(kept_BA.dtype)
        loss += self._more_gradients(experience, weights_BA, sums)
        return loss, sums

    def _with_the_others(self, loss: float, sums: dict[str, float]) -> tuple[float, dict[str, float]]:
        """Loss, statistics and gradients of the whole batch, from what each trainer has of them."""
        if self.replicas.size == 1:
            return loss, sums
        with self.activity.doing("meet", "adding gradients up with the other trainers"):
            losses, reports = zip(*self.replicas.gather((loss, sums)), strict=True)
            same_gradients([p for optimizer in self._optimizers for p in optimizer.parameters], self.replicas)
        return sum(losses), added_up(reports)

    @property
    def _optimizers(self) -> list[Optimizer]:
        return [self.optimizer]

    def filter_group(self, group: tuple[BufferItem, ...]) -> FilteredGroup:
        """Leave out samples without a reward, and groups that cannot teach anything."""
        scored = tuple(item for item in group if item.reward is not None)
        dropped: dict[str, tuple[BufferItem, ...]] = {}
        for item in group:
            if item.reward is None:
                reason = item.facts.reward_failure or "no_reward"
                dropped[reason] = (*dropped.get(reason, ()), item)
                self._last_reward_error = item.facts.reward_error or ""
                self.first_reward_error = self.first_reward_error or self._last_reward_error
        if len(scored) < self.algorithm.min_group:
            return FilteredGroup((), {**dropped, **({"group_too_small": scored} if scored else {})})
        rewards_G = torch.stack([item.reward for item in scored if item.reward is not None])
        if not self.algorithm.keeps_group(rewards_G):
            return FilteredGroup((), {**dropped, "zero_variance": scored})
        return FilteredGroup(scored, dropped)

    def _update_remote_makers(self, fully_update: bool = False, **kwargs: Any) -> None:
        """Publish the policy under the next version; makers fetch it when a lease names it."""
        if self.replicas.rank:
            return  # all trainers have the same weights, and rank 0 publishes them
        self.store.publish(self.state.policy_version + 1, trained_weights(self.model))
        self.store.retire(but=self.source.versions_in_use())

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "last_reward_error": self._last_reward_error,
            "first_reward_error": self.first_reward_error,
        }

    def load_state_dict(self, saved: Mapping[str, Any], row: ManifestRow | None = None) -> None:
        super().load_state_dict(saved, row)
        for optimizer, state in zip(self._optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self._last_reward_error = saved["last_reward_error"]
        self.first_reward_error = saved.get("first_reward_error", self._last_reward_error)

    @property
    def _device(self) -> torch.device | str:
        return self.model.device

    def _why_empty(self) -> str:
        if self._last_reward_error:
            return f"; the last sample without a reward said: {self._last_reward_error}"
        return ": no group has two completions with different rewards"

    def _why_idle(self) -> str:
        failed = self.source.ledger.failed_rewards
        if failed and self.first_reward_error:
            return f"; {failed} samples had no usable reward, the first because: {self.first_reward_error}"
        return super()._why_idle()

    # -- before a batch's first step -----------------------------------------------------------------

    @torch.no_grad()
    def _prepare(self, experience: Experience) -> None:
        """At a batch's first use, whatever it does not bring: the reference, and each token's credit."""
        mask_BA = action_mask_of(experience)
        experience.old_log_probs = experience.action_log_probs
        if self.settings.old == "trainer" or self.algorithm.needs_proximal:
            own_BA = self._log_probs(self.model, experience)
            experience.importance = truncated_importance(
                own_BA, experience.action_log_probs, mask_BA, cap=self.settings.importance_cap
            )
            experience.old_log_probs = own_BA
        if self._reference is not None and experience.reference_log_probs is None:
            with self._reference() as reference:
                experience.reference_log_probs = self._log_probs(reference, experience)
        if experience.kl is None and experience.reference_log_probs is not None:
            distance_BA = log_ratio(experience.old_log_probs, experience.reference_log_probs)
            experience.kl = distance_BA.masked_fill(~mask_BA, 0)
        credit = self._credit(experience, mask_BA)
        experience.advantages = credit.advantages_BT
        experience.returns = credit.returns_BT

    def _credit(self, experience: Experience, mask_BA: torch.Tensor) -> Credit:
        if experience.advantages is None:
            return self.algorithm.assign_credit(self._credit_inputs(experience, mask_BA))
        given = experience.advantages
        advantages_BA = given[:, None].expand_as(mask_BA) if given.dim() == 1 else given
        return Credit(advantages_BA.masked_fill(~mask_BA, 0), experience.returns)

    def _shaped_rewards(self, experience: Experience, mask_BA: torch.Tensor) -> torch.Tensor:
        assert experience.reward is not None
        lengths_B = completion_lengths(experience, mask_BA)
        return self.algorithm.shape_rewards(experience.reward, lengths_B, self.sampling.max_new_tokens)

    def _credit_inputs(self, experience: Experience, mask_BA: torch.Tensor) -> CreditInputs:
        if experience.reward is None:
            raise SettingError(
                "this experience brings neither rewards nor advantages: there is nothing to learn from it"
            )
        return CreditInputs(
            self._shaped_rewards(experience, mask_BA),
            group_indices(experience),
            mask_BA,
            experience.kl,
            kl_reward_coefficient=self._kl_reward_coefficient,
        )

    @property
    def _kl_reward_coefficient(self) -> float:
        return float(getattr(self.algorithm, "kl_reward_coefficient", 0.0))

    def _log_probs(self, model: PreTrainedModel, experience: Experience) -> torch.Tensor:
        shape, dtype = experience.action_log_probs.shape, torch.promote_types(model.dtype, torch.float32)
        log_probs_BA = torch.zeros(shape, dtype=dtype, device=experience.sequences.device)
        for rows in self._micro_batches(experience):
            micro = take_rows(experience, rows)
            actions = micro.action_log_probs.shape[1]
            log_probs_BA[rows, :actions] = self._statistics(model, micro, with_entropy=False).log_probs_BA
        self.replicas.sum_([log_probs_BA])  # each has its own rows, and 0 in the others'
        return log_probs_BA

    # -- one step ------------------------------------------------------------------------------------

    def _micro_batches(self, experience: Experience, *, may_share: bool = True) -> list[list[int]]:
        """The rows that this trainer computes, in the pieces in which it does."""
        mask_BS, budget = attention_mask_of(experience).bool(), self.settings.token_budget
        lengths = mask_BS.sum(-1).tolist()
        groups_B = group_indices(experience)
        own = deal_rows(lengths, groups_B.tolist(), self.replicas.size)[self.replicas.rank]
        if not (may_share and self.settings.share_prompts):
            return [[own[i] for i in rows] for rows in plan_micro_batches([lengths[row] for row in own], budget)]
        rows_of: dict[int, list[int]] = {}
        for row in own:
            rows_of.setdefault(int(groups_B[row]), []).append(row)
        shared = shared_lengths(mask_BS, experience.action_log_probs.shape[1], groups_B)
        groups = list(rows_of)
        plan = plan_micro_batches([shared[group] for group in groups], budget)
        return [sorted(row for i in pieces for row in rows_of[groups[i]]) for pieces in plan]

    def _micro_batch(self, micro: Experience, weights_BA: torch.Tensor) -> tuple[float, dict[str, float]]:
        """The gradient of some rows, added to what is there, with their share of the loss and of the statistics."""
        mask_BA = action_mask_of(micro)
        weights_BA = weights_BA[:, : mask_BA.shape[1]]
        statistics = self._statistics(self.model, micro, with_entropy=True, value_head=self._value_head)
        self._micro_log_probs = statistics.log_probs_BA.detach()
        assert micro.old_log_probs is not None
        assert micro.advantages is not None
        token_loss = self.algorithm.token_loss(
            TokenLossInputs(
                statistics.log_probs_BA,
                micro.old_log_probs,
                micro.advantages,
                mask_BA,
                statistics.entropy_BA,
                micro.reference_log_probs,
                micro.importance,
            )
        )
        loss = (weights_BA * token_loss.loss_BT).sum()
        described = {name: float(values.sum()) for name, values in token_loss.statistics.items()}
        loss = self._add_to_loss(loss, micro, statistics, weights_BA, described)
        self.optimizer.backward(loss)
        return float(loss.detach()), described

    def _statistics(
        self,
        model: PreTrainedModel,
        experience: Experience,
        *,
        with_entropy: bool,
        value_head: nn.Module | None = None,
    ) -> ActionStatistics:
        compute: Callable[..., ActionStatistics] = action_statistics
        if self.settings.share_prompts:
            compute = partial(shared_prompt_statistics, groups_B=group_indices(experience))
        return compute(
            model,
            experience.sequences,
            attention_mask_of(experience),
            experience.action_log_probs.shape[1],
            temperature=self.sampling.temperature or 1.0,
            with_entropy=with_entropy,
            value_head=value_head,
        )

    # -- what a critic adds --------------------------------------------------------------------------

    _value_head: nn.Module | None = None
    """A head on the policy's own hidden states, whose values `_add_to_loss` finds in the statistics."""

    def _trained_with_the_policy(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.model.named_parameters())

    def _add_to_loss(
        self,
        loss: torch.Tensor,
        micro: Experience,
        statistics: ActionStatistics,
        weights_BA: torch.Tensor,
        described: dict[str, float],
    ) -> torch.Tensor:
        return loss

    def _more_gradients(self, experience: Experience, weights_BA: torch.Tensor, sums: dict[str, float]) -> float:
        """What is learned from the batch beside the policy, in passes of its own; its loss."""
        return 0.0

    def _zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def _optimizer_step(self, loss_is_finite: bool) -> dict[str, float]:
        outcome = self.optimizer.step(loss_is_finite)
        metrics = {"grad_norm": outcome.grad_norm, "learning_rate": outcome.learning_rate}
        return metrics | ({"skipped": 1.0} if outcome.skipped else {})

    def _describe(self, experience: Experience, mask_BA: torch.Tensor) -> dict[str, float]:
        """What a user wants to see of a batch besides its loss."""
        rewards = {} if experience.reward is None else _described_rewards(experience.reward)
        described = {
            **rewards,
            "completion_tokens": float(completion_lengths(experience, mask_BA).float().mean()),
            "samples": float(len(experience)),
            **_parts_of_rewards(experience),
        }
        if experience.kl is not None:
            described["kl_to_reference"] = float(experience.kl.sum(-1).mean())  # per completion, not per token
        if experience.versions is not None:
            lag_BA = (self.state.policy_version - experience.versions).masked_fill(~mask_BA, 0)
            described["staleness"] = float(lag_BA.max())
        return described


def _described_rewards(rewards_B: torch.Tensor) -> dict[str, float]:
    return {"reward": float(rewards_B.mean()), "reward_std": float(rewards_B.std(correction=0))}


def _parts_of_rewards(experience: Experience) -> dict[str, float]:
    """The mean of each part of the reward over the samples that have it, before its weight; one part is the reward."""
    parts: dict[str, list[float]] = {}
    for facts in experience.facts:
        for name, value in facts.reward_parts.items():
            if value is not None:
                parts.setdefault(name, []).append(value)
    if len(parts) < 2:
        return {}
    return {f"reward.{name}": sum(values) / len(values) for name, values in parts.items()}


def action_mask_of(experience: Experience) -> torch.Tensor:
    if experience.action_mask is None:
        return torch.ones_like(experience.action_log_probs, dtype=torch.bool)
    return experience.action_mask.bool()


def attention_mask_of(experience: Experience) -> torch.Tensor:
    if experience.attention_mask is None:
        return torch.ones_like(experience.sequences, dtype=torch.bool)
    return experience.attention_mask


def completion_lengths(experience: Experience, mask_BA: torch.Tensor) -> torch.Tensor:
    """Of all sampled tokens, those too that a hook took out of what is trained."""
    if experience.attention_mask is None:
        return mask_BA.sum(-1)
    return experience.attention_mask[:, -mask_BA.shape[1] :].bool().sum(-1)


def group_indices(experience: Experience) -> torch.Tensor:
    """Group ids as numbers from 0; a sample without one is a group by itself."""
    ids = [group or uid or str(row) for row, (group, uid) in enumerate(
        zip(experience.group_ids or [""] * len(experience), experience.uids or [""] * len(experience), strict=True)
    )]  # fmt: skip
    numbers = {group: number for number, group in enumerate(dict.fromkeys(ids))}
    return torch.tensor([numbers[group] for group in ids], device=experience.sequences.device)
