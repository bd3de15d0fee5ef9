"""`DetachedPPOTrainer`: actor, critic and frozen reference on Hugging Face models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..algorithms import PPO, Credit, CreditInputs
from ..data.experience import Experience
from ..data.loop import ManifestRow
from ..errors import SettingError
from ..learning.optimizer import Optimizer, OptimizerSettings
from ..maths.shaping import adapted_kl_coefficient
from ..maths.values import explained_variance
from ..policy.critic import Critic
from ..policy.log_probs import ActionStatistics
from ..policy.micro_batches import take_rows
from .policy_trainer import PolicyTrainer, action_mask_of, attention_mask_of, completion_lengths


class DetachedPPOTrainer(PolicyTrainer):
    """Trains a policy by PPO: a critic says what was to be expected, and tokens are credited with the difference.

    A critic that shares the policy's decoder learns with the policy's optimizer; one with a decoder of its own has
    its own (`critic_optimizer`). Values, KL and advantages are computed once per batch, at its first use; only the
    policy is published.
    """

    algorithm: PPO

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        critic: Critic,
        algorithm: PPO,
        optimizer: OptimizerSettings,
        optimizer_steps: int,
        critic_optimizer: OptimizerSettings | None = None,
        **settings: Any,
    ) -> None:
        if not algorithm.needs_critic:
            raise ValueError(f"{algorithm.name} has no use for a critic: use DetachedGRPOTrainer")
        self.critic = critic
        super().__init__(
            model, algorithm=algorithm, optimizer=optimizer, optimizer_steps=optimizer_steps, **settings
        )  # fmt: skip
        self.kl_reward_coefficient = algorithm.kl_reward_coefficient
        self._used_coefficient = algorithm.kl_reward_coefficient
        self.critic_optimizer: Optimizer | None = None
        if critic.shares_decoder:
            self._value_head = critic.head
        else:
            self.critic_optimizer = Optimizer(
                critic.named_parameters(), critic_optimizer or optimizer, optimizer_steps
            )  # fmt: skip

    # -- saving --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "critic": {name: parameter.detach() for name, parameter in self.critic.named_parameters()},
            "kl_reward_coefficient": self.kl_reward_coefficient,
            "used_coefficient": self._used_coefficient,
        }

    def load_state_dict(self, saved: Mapping[str, Any], row: ManifestRow | None = None) -> None:
        own = dict(self.critic.named_parameters())
        if own.keys() != saved["critic"].keys():
            other = min(own.keys() ^ saved["critic"].keys())
            raise SettingError(f"the saved critic is another one: {other} is only in one of the two")
        with torch.no_grad():
            for name, tensor in saved["critic"].items():
                own[name].copy_(tensor)
        super().load_state_dict(saved, row)  # after the weights that its optimizers may have to begin from
        self.kl_reward_coefficient = saved["kl_reward_coefficient"]
        self._used_coefficient = saved["used_coefficient"]

    # -- before a batch's first step -----------------------------------------------------------------

    def _credit(self, experience: Experience, mask_BA: torch.Tensor) -> Credit:
        self._used_coefficient = self.kl_reward_coefficient
        credit = super()._credit(experience, mask_BA)
        if credit.returns_BT is None:  # advantages that came with the experience
            if experience.values is None:
                experience.values, _ = self._values(experience, mask_BA)
            credit = replace(credit, returns_BT=credit.advantages_BT + experience.values)
        if self.algorithm.kl_target is not None and experience.kl is not None:
            self.kl_reward_coefficient = adapted_kl_coefficient(
                self.kl_reward_coefficient,
                float(experience.kl.sum(-1).mean()),
                target=self.algorithm.kl_target,
                horizon=self.algorithm.kl_horizon,
                samples=len(experience),
            )
        return credit

    def _credit_inputs(self, experience: Experience, mask_BA: torch.Tensor) -> CreditInputs:
        inputs = super()._credit_inputs(experience, mask_BA)
        bootstrap = self.algorithm.bootstrap_truncated and bool(experience.facts)
        if experience.values is None or bootstrap:
            values_BA, after_B = self._values(experience, mask_BA)
            experience.values = values_BA if experience.values is None else experience.values
        inputs = replace(inputs, values_BT=experience.values)
        if not bootstrap:
            return inputs
        cut_off_B = torch.tensor([facts.finish_reason == "length" for facts in experience.facts])
        return replace(inputs, bootstrap_B=after_B.masked_fill(~cut_off_B.to(after_B.device), 0))

    @property
    def _kl_reward_coefficient(self) -> float:
        return self.kl_reward_coefficient

    def _values(self, experience: Experience, mask_BA: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the critic expects before each token, 0 where masked, and after each completion's last."""
        values_BA = torch.zeros_like(mask_BA, dtype=self.critic.head.weight.dtype)
        after_B = torch.zeros(len(experience), dtype=values_BA.dtype, device=values_BA.device)
        for rows in self._micro_batches(experience, may_share=False):
            micro = take_rows(experience, rows)
            actions = micro.action_log_probs.shape[1]
            own_BA = self.critic.values(micro.sequences, attention_mask_of(micro), actions)
            mask_here_BA = action_mask_of(micro)
            values_BA[rows, :actions] = own_BA[:, :-1].masked_fill(~mask_here_BA, 0)
            lengths_B = completion_lengths(micro, mask_here_BA)
            after_B[rows] = own_BA.gather(1, lengths_B[:, None])[:, 0]
        self.replicas.sum_([values_BA, after_B])  # each has its own rows, and 0 in the others'
        return values_BA, after_B

    # -- one step ------------------------------------------------------------------------------------

    def _trained_with_the_policy(self) -> list[tuple[str, nn.Parameter]]:
        own = [(f"value_head.{name}", parameter) for name, parameter in self.critic.head.named_parameters()]
        return [*super()._trained_with_the_policy(), *(own if self.critic.shares_decoder else [])]

    def _add_to_loss(
        self,
        loss: torch.Tensor,
        micro: Experience,
        statistics: ActionStatistics,
        weights_BA: torch.Tensor,
        described: dict[str, float],
    ) -> torch.Tensor:
        if statistics.values_BA is None:
            return loss
        return loss + self._value_loss(micro, statistics.values_BA, weights_BA, described)

    def _more_gradients(self, experience: Experience, weights_BA: torch.Tensor, sums: dict[str, float]) -> float:
        """Those of a critic of its own: it shares no prompts, so its passes are planned by themselves."""
        if self.critic_optimizer is None:
            return 0.0
        total = 0.0
        for rows in self._micro_batches(experience, may_share=False):
            micro = take_rows(experience, rows)
            actions = micro.action_log_probs.shape[1]
            values_BA = self.critic.values(micro.sequences, attention_mask_of(micro), actions)[:, :-1]
            described: dict[str, float] = {}
            loss = self._value_loss(micro, values_BA, weights_BA[rows, :actions], described)
            self.critic_optimizer.backward(loss)
            total += float(loss.detach())
            for name, value in described.items():
                sums[name] = sums.get(name, 0.0) + value
        return total

    def _value_loss(
        self, micro: Experience, values_BA: torch.Tensor, weights_BA: torch.Tensor, described: dict[str, float]
    ) -> torch.Tensor:
        assert micro.values is not None
        assert micro.returns is not None
        loss_BA = self.algorithm.value_loss(values_BA, micro.values, micro.returns, action_mask_of(micro))
        described["value_loss"] = float(loss_BA.detach().sum())
        return self.algorithm.value_coefficient * (weights_BA * loss_BA).sum()

    @property
    def _optimizers(self) -> list[Optimizer]:
        return [*super()._optimizers, *([self.critic_optimizer] if self.critic_optimizer is not None else [])]

    def _zero_grad(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def _optimizer_step(self, loss_is_finite: bool) -> dict[str, float]:
        metrics = super()._optimizer_step(loss_is_finite)
        if self.critic_optimizer is not None:
            outcome = self.critic_optimizer.step(loss_is_finite)
            metrics["critic_grad_norm"] = outcome.grad_norm
            if outcome.skipped:
                metrics["critic_skipped"] = 1.0
        return metrics

    def _describe(self, experience: Experience, mask_BA: torch.Tensor) -> dict[str, float]:
        assert experience.values is not None
        assert experience.returns is not None
        described = super()._describe(experience, mask_BA)
        described["value"] = float(experience.values.sum() / mask_BA.sum().clamp(min=1))
        described["explained_variance"] = explained_variance(experience.values, experience.returns, mask_BA)
        if experience.kl is not None:
            described["kl_reward_coefficient"] = self._used_coefficient
        return described
