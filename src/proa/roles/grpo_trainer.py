"""`DetachedGRPOTrainer`: the critic-free family (GRPO, Dr.GRPO, DAPO, RLOO) on a Hugging Face model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from ..algorithms import Algorithm, TokenLossInputs
from ..data.experience import BufferItem, Experience
from ..data.sampling import Sampling
from ..maths.importance import truncated_importance
from ..policy.log_probs import action_statistics
from ..policy.micro_batches import plan_micro_batches, take_rows
from ..policy.models import weights_of
from ..policy.optimizer import Optimizer, OptimizerSettings
from .lease_book import Sifted
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


class DetachedGRPOTrainer(DetachedTrainer):
    """Trains a policy by comparing the completions of each prompt with one another.

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
        self.optimizer = Optimizer(model.named_parameters(), optimizer, optimizer_steps)
        self.store = store
        self.settings = settings or StepSettings()
        self._last_reward_error = ""
        self._reference = copy.deepcopy(model).requires_grad_(False) if algorithm.kl_coefficient else None

    def training_step(self, experience: Experience) -> dict[str, Any]:
        """One optimizer step; the micro-batches inside give the gradient of the whole batch exactly."""
        experience.to_device(self.model.device)
        if experience.old_log_probs is None:
            self._prepare(experience)
        mask_BA = _action_mask(experience)
        weights_BA = self.algorithm.token_weights(mask_BA, self.sampling.max_new_tokens)
        self.optimizer.zero_grad()
        loss = 0.0
        sums: dict[str, float] = {}
        for rows in plan_micro_batches(_lengths(experience), self.settings.token_budget):
            micro_loss, statistics = self._micro_batch(take_rows(experience, rows), weights_BA[rows])
            loss += micro_loss
            for name, value in statistics.items():
                sums[name] = sums.get(name, 0.0) + value
        outcome = self.optimizer.step(bool(torch.isfinite(torch.tensor(loss))))
        tokens = max(1, int(mask_BA.sum()))
        return {
            "loss": loss,
            "grad_norm": outcome.grad_norm,
            "learning_rate": outcome.learning_rate,
            **self._describe(experience, mask_BA),
            **{name: value / tokens for name, value in sums.items()},
            **({"skipped": 1.0} if outcome.skipped else {}),
        }

    def sift(self, group: tuple[BufferItem, ...]) -> Sifted:
        """Leave out samples without a reward, and groups that cannot teach anything."""
        scored = tuple(item for item in group if item.reward is not None)
        dropped: dict[str, tuple[BufferItem, ...]] = {}
        for item in group:
            if item.reward is None:
                reason = item.notes.get("reward_failure", "no_reward")
                dropped[reason] = (*dropped.get(reason, ()), item)
                self._last_reward_error = item.notes.get("error", "")
        if len(scored) < 2:
            return Sifted((), {**dropped, **({"group_too_small": scored} if scored else {})})
        rewards_G = torch.stack([item.reward for item in scored if item.reward is not None])
        if not self.algorithm.keeps_group(rewards_G):
            return Sifted((), {**dropped, "zero_variance": scored})
        return Sifted(scored, dropped)

    def _update_remote_makers(self, fully_update: bool = False, **kwargs: Any) -> None:
        """Publish the weights under the next version; makers fetch them when a lease names it."""
        self.store.publish(self.state.policy_version + 1, weights_of(self.model))
        self.store.retire(older_than=self.source.oldest_version_in_use())

    def _why_empty(self) -> str:
        if self._last_reward_error:
            return f"; the last sample without a reward said: {self._last_reward_error}"
        return ": no group has two completions with different rewards"

    # -- one batch -----------------------------------------------------------------------------------

    @torch.no_grad()
    def _prepare(self, experience: Experience) -> None:
        """At a batch's first use: advantages, what the ratio is taken against, the reference."""
        mask_BA = _action_mask(experience)
        assert experience.reward is not None, "the source sifts out what has no reward"
        rewards_B = self.algorithm.shape_rewards(experience.reward, mask_BA.sum(-1), self.sampling.max_new_tokens)
        experience.advantages = self.algorithm.advantages(rewards_B, _group_indices(experience))
        experience.old_log_probs = experience.action_log_probs
        if self.settings.old == "trainer":
            own_BA = self._log_probs(self.model, experience)
            experience.importance = truncated_importance(
                own_BA, experience.action_log_probs, mask_BA, cap=self.settings.importance_cap
            )
            experience.old_log_probs = own_BA
        if self._reference is not None:
            experience.reference_log_probs = self._log_probs(self._reference, experience)

    def _log_probs(self, model: PreTrainedModel, experience: Experience) -> torch.Tensor:
        log_probs_BA = torch.zeros_like(experience.action_log_probs)
        for rows in plan_micro_batches(_lengths(experience), self.settings.token_budget):
            micro = take_rows(experience, rows)
            actions = micro.action_log_probs.shape[1]
            log_probs_BA[rows, :actions] = self._statistics(model, micro, with_entropy=False).log_probs_BA
        return log_probs_BA

    def _statistics(self, model: PreTrainedModel, experience: Experience, *, with_entropy: bool) -> Any:
        return action_statistics(
            model,
            experience.sequences,
            _attention_mask(experience),
            experience.action_log_probs.shape[1],
            temperature=self.sampling.temperature or 1.0,
            with_entropy=with_entropy,
        )

    def _micro_batch(self, micro: Experience, weights_BA: torch.Tensor) -> tuple[float, dict[str, float]]:
        mask_BA = _action_mask(micro)
        statistics = self._statistics(self.model, micro, with_entropy=True)
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
        loss = (weights_BA[:, : mask_BA.shape[1]] * token_loss.loss_BT).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), {name: float(values.sum()) for name, values in token_loss.statistics.items()}

    def _describe(self, experience: Experience, mask_BA: torch.Tensor) -> dict[str, float]:
        """What a user wants to see of a batch besides its loss."""
        assert experience.reward is not None
        described = {
            "reward": float(experience.reward.mean()),
            "reward_std": float(experience.reward.std(correction=0)),
            "completion_tokens": float(mask_BA.sum(-1).float().mean()),
            "samples": float(len(experience)),
        }
        if experience.versions is not None:
            lag_BA = (self.state.policy_version - experience.versions).masked_fill(~mask_BA, 0)
            described["staleness"] = float(lag_BA.max())
        return described


def _action_mask(experience: Experience) -> torch.Tensor:
    if experience.action_mask is None:
        return torch.ones_like(experience.action_log_probs, dtype=torch.bool)
    return experience.action_mask.bool()


def _attention_mask(experience: Experience) -> torch.Tensor:
    if experience.attention_mask is None:
        return torch.ones_like(experience.sequences, dtype=torch.bool)
    return experience.attention_mask


def _lengths(experience: Experience) -> list[int]:
    return [int(length) for length in _attention_mask(experience).sum(-1).tolist()]


def _group_indices(experience: Experience) -> torch.Tensor:
    """Group ids as numbers from 0; a sample without one is a group by itself."""
    ids = [group or uid or str(row) for row, (group, uid) in enumerate(
        zip(experience.group_ids or [""] * len(experience), experience.uids or [""] * len(experience), strict=True)
    )]  # fmt: skip
    numbers = {group: number for number, group in enumerate(dict.fromkeys(ids))}
    return torch.tensor([numbers[group] for group in ids], device=experience.sequences.device)
