"""Trains a critic beside the policy: on the policy's hidden states, or in separate passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..algorithms import CriticAlgorithm
from ..data.experience import Experience
from ..data.masks import action_mask_of, attention_mask_of, completion_lengths
from ..errors import SettingError
from ..maths.values import explained_variance
from ..policy.critic import Critic
from ..policy.log_probs import ActionStatistics
from ..policy.micro_batches import take_rows
from .optimizer import Optimizer, OptimizerSettings
from .replicas import Replicas
from .shares import plan_own_rows
from .step_memory import StepMemory
from .totals import Totals


class ValueLearner:
    """Predicts the return at each token, and learns the actual returns.

    A critic that shares the policy's decoder learns with the policy's optimizer: its values come with the policy's
    statistics, and its loss is added to the policy's. One with a decoder of its own has its own optimizer and passes.
    """

    def __init__(
        self,
        critic: Critic,
        algorithm: CriticAlgorithm,
        *,
        optimizer: OptimizerSettings,
        optimizer_steps: int,
        replicas: Replicas,
        memory: StepMemory,
    ) -> None:
        self.critic = critic
        self._algorithm = algorithm
        self._replicas = replicas
        self._memory = memory
        self.optimizer: Optimizer | None = None
        if not critic.shares_decoder:
            self.optimizer = Optimizer(critic.named_parameters(), optimizer, optimizer_steps)

    @property
    def head(self) -> nn.Module | None:
        """The head that the policy's own pass applies to its hidden states; None for a separate critic."""
        return self.critic.head if self.critic.shares_decoder else None

    def shared_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The critic's parameters that the policy's optimizer trains."""
        if not self.critic.shares_decoder:
            return []
        return [(f"value_head.{name}", parameter) for name, parameter in self.critic.head.named_parameters()]

    # -- before a batch's first step -----------------------------------------------------------------

    def estimate(self, experience: Experience) -> torch.Tensor | None:
        """Set the batch's values if it has none. Returns the value after each truncated completion, (B,), if the
        algorithm uses it."""
        bootstrap = self._algorithm.bootstrap_truncated and bool(experience.facts)
        if experience.values is not None and not bootstrap:
            return None
        values_BA, after_B = self._values(experience)
        experience.values = values_BA if experience.values is None else experience.values
        if not bootstrap:
            return None
        cut_off_B = torch.tensor([facts.is_truncated for facts in experience.facts])
        return after_B.masked_fill(~cut_off_B.to(after_B.device), 0)

    @torch.no_grad()
    def _values(self, experience: Experience) -> tuple[torch.Tensor, torch.Tensor]:
        """The critic's values before each token, 0 where masked, and after each completion's last."""
        values_BA = torch.zeros_like(action_mask_of(experience), dtype=self.critic.head.weight.dtype)
        after_B = torch.zeros(len(experience), dtype=values_BA.dtype, device=values_BA.device)
        for rows in plan_own_rows(experience, self._replicas, self._memory.token_budget):
            micro = take_rows(experience, rows)
            actions = micro.action_log_probs.shape[1]
            own_BA = self.critic.values(micro.sequences, attention_mask_of(micro), actions)
            values_BA[rows, :actions] = own_BA[:, :-1].masked_fill(~action_mask_of(micro), 0)
            after_B[rows] = own_BA.gather(1, completion_lengths(micro)[:, None])[:, 0]
        self._replicas.sum_([values_BA, after_B])  # each has its own rows, and 0 in the others'
        return values_BA, after_B

    # -- one step ------------------------------------------------------------------------------------

    def shared_loss(
        self, micro: Experience, statistics: ActionStatistics, weights_BA: torch.Tensor, totals: Totals
    ) -> torch.Tensor | float:
        """The term for the policy's loss of some rows."""
        if statistics.values_BA is None:
            return 0.0
        return self._loss(micro, statistics.values_BA, weights_BA, totals)

    def separate_gradients(
        self, experience: Experience, weights_BA: torch.Tensor, losses: Totals, totals: Totals
    ) -> None:
        """Find the gradients of a separate critic; its loss is added to `losses`. Its micro-batches are planned
        separately, as it does not share prompts."""
        if self.optimizer is None:
            return
        for rows in plan_own_rows(experience, self._replicas, self._memory.token_budget):
            micro = take_rows(experience, rows)
            actions = micro.action_log_probs.shape[1]
            values_BA = self.critic.values(micro.sequences, attention_mask_of(micro), actions)[:, :-1]
            loss = self._loss(micro, values_BA, weights_BA[rows, :actions], totals)
            self.optimizer.backward(loss)
            losses.add("critic", loss)

    def _loss(
        self, micro: Experience, values_BA: torch.Tensor, weights_BA: torch.Tensor, totals: Totals
    ) -> torch.Tensor:
        assert micro.values is not None
        assert micro.returns is not None
        loss_BA = self._algorithm.value_loss(values_BA, micro.values, micro.returns, action_mask_of(micro))
        totals.add("value_loss", loss_BA)
        return self._algorithm.value_coefficient * (weights_BA * loss_BA).sum()

    def optimizer_step(self, loss_is_finite: bool) -> dict[str, float]:
        if self.optimizer is None:
            return {}
        outcome = self.optimizer.step(loss_is_finite)
        return {"critic_grad_norm": outcome.grad_norm} | ({"critic_skipped": 1.0} if outcome.skipped else {})

    def describe(self, experience: Experience) -> dict[str, float]:
        assert experience.values is not None
        assert experience.returns is not None
        mask_BA = action_mask_of(experience)
        return {
            "value": float(experience.values.sum() / mask_BA.sum().clamp(min=1)),
            "explained_variance": explained_variance(experience.values, experience.returns, mask_BA),
        }

    # -- saving --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {name: parameter.detach() for name, parameter in self.critic.named_parameters()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        own = dict(self.critic.named_parameters())
        if own.keys() != saved.keys():
            other = min(own.keys() ^ saved.keys())
            raise SettingError(f"the saved critic is another one: {other} is only in one of the two")
        with torch.no_grad():
            for name, tensor in saved.items():
                own[name].copy_(tensor)
