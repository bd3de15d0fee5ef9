"""`Learner`: one optimizer step from one batch of experience, as an algorithm says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch

from ..actors.activity import Activity
from ..algorithms import Algorithm, Credit, CreditInputs, CriticAlgorithm, TokenLossInputs
from ..data.experience import Experience
from ..data.masks import action_mask_of, group_indices, longest_turns, sampled_lengths
from ..data.sampling import Sampling
from ..data.trajectories import Trajectories
from ..errors import SettingError
from ..maths.importance import log_ratio, truncated_importance
from ..policy.computing import saying_if_compiled
from ..policy.critic import Critic
from ..policy.micro_batches import take_rows
from ..policy.policy import Policy, Reference
from ..record.journal import JournalEntry
from .optimizer import Optimizer, OptimizerSettings
from .replicas import Alone, Replicas, added_up, same_gradients
from .shares import plan_own_rows
from .step_memory import StepMemory
from .totals import Totals
from .value_learner import ValueLearner

Computed = TypeVar("Computed")

_FIRST_STEPS = 3
"""Steps that may be slow because layers are compiled."""


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """How a step is computed, with any algorithm."""

    token_budget: int = 16_384
    """Tokens, padding included, of one micro-batch; 0 is the whole batch at once."""
    old: Literal["sampler", "trainer"] = "sampler"
    """The log-probabilities that ratios are relative to: the sampler's, or those of the trainer's first pass."""
    importance_cap: float = 2.0
    """With `old="trainer"`: the largest importance weight of a token, for the mismatch with the sampler."""
    share_prompts: bool = False
    """Compute a prompt once for its group instead of once for each completion."""


@dataclass(frozen=True, slots=True)
class FoundGradients:
    """The loss and the statistics of a batch whose gradients are found."""

    loss: float
    token_means: dict[str, float]
    """Statistics by name, means over the trained tokens."""


class Learner:
    """Trains a policy on batches of experience: credit for each token, gradients of micro-batches, one step.

    A batch's first use computes what it lacks: the trainer's own log-probabilities, the reference's, the critic's
    values, advantages. Later epochs over the batch use the same. The micro-batches inside a step give the gradient of
    the whole batch exactly; with several trainers each computes its share of the rows.

    `optimizer_steps` is how many steps the run will make, for the learning-rate schedule; `expect_steps` may set it
    later. Without `sampling` each batch's own sampling settings are used.
    """

    def __init__(
        self,
        policy: Policy,
        algorithm: Algorithm,
        optimizer: OptimizerSettings,
        critic: Critic | None = None,
        replicas: Replicas | None = None,
        *,
        optimizer_steps: int | None = None,
        sampling: Sampling | None = None,
        settings: StepSettings | None = None,
        critic_optimizer: OptimizerSettings | None = None,
    ) -> None:
        self.policy = policy
        self.algorithm = algorithm
        self.sampling = sampling or Sampling()
        self.settings = settings or StepSettings()
        self._follows_batches = sampling is None
        self._knows_steps = optimizer_steps is not None
        self.replicas: Replicas = replicas or Alone()
        self._memory = StepMemory(self.settings.token_budget)
        self.activity = Activity()
        """What it is doing; a trainer sets its own here."""
        self.values = self._value_learner(critic, critic_optimizer or optimizer, optimizer_steps or 1)
        more = self.values.shared_parameters() if self.values is not None else []
        self.optimizer = Optimizer([*policy.parameters(), *more], optimizer, optimizer_steps or 1)
        self.kl_coefficient = algorithm.first_kl_coefficient
        """The cost in reward of a unit of KL, which algorithms may adapt from batch to batch."""
        self.keep_log_probs = False
        """Whether to keep the policy's log-probabilities of a step's batch, for the record."""
        self.log_probs: torch.Tensor | None = None
        """These log-probabilities, (B, A); NaN in rows of other trainers."""
        self._used_kl_coefficient = self.kl_coefficient
        self._reference: Reference | None = policy.reference() if algorithm.needs_reference else None

    def _value_learner(
        self, critic: Critic | None, optimizer: OptimizerSettings, optimizer_steps: int
    ) -> ValueLearner | None:
        algorithm = self.algorithm
        if critic is None:
            if algorithm.needs_critic:
                raise SettingError(f"{algorithm.name} needs a critic: give one, as DetachedPPOTrainer does")
            return None
        if not isinstance(algorithm, CriticAlgorithm):
            raise SettingError(
                f"{algorithm.name} has no use for a critic: leave it out, as DetachedGRPOTrainer does, or derive the "
                "algorithm from CriticAlgorithm"
            )
        return ValueLearner(
            critic,
            algorithm,
            optimizer=optimizer,
            optimizer_steps=optimizer_steps,
            replicas=self.replicas,
            memory=self._memory,
        )

    def step(self, experience: Experience) -> dict[str, float]:
        """One optimizer step; its metrics."""
        return self.take_step(experience, self.find_gradients(experience))

    def find_gradients(self, experience: Experience) -> FoundGradients:
        """The first half of a step: the gradients of the whole batch, in the optimizers."""
        experience.to_device(self.policy.device)
        if self._follows_batches:
            self.sampling = experience.sampling or self.sampling
        self._memory.begin(self.optimizer.steps)
        if experience.old_log_probs is None:
            self._retry_smaller(lambda: self._prepare(experience))
        mask_BA, trajectories = action_mask_of(experience), Trajectories(experience)
        weights_BA = trajectories.split(
            self.algorithm.token_weights(trajectories.join(mask_BA), self.sampling.max_new_tokens, dtype=self._dtype)
        )
        compiling = saying_if_compiled(self.policy.model) if self.optimizer.steps < _FIRST_STEPS else nullcontext()
        with self.activity.doing("compute", f"computing step {self.optimizer.steps + 1}"), compiling:
            own = self._retry_smaller(lambda: self._gradients(experience, weights_BA))
        loss, sums = self._over_replicas(*own)
        tokens = max(1, int(mask_BA.sum()))
        return FoundGradients(loss, {name: value / tokens for name, value in sums.items()})

    def take_step(self, experience: Experience, found: FoundGradients) -> dict[str, float]:
        """The second half of a step: update the weights; returns the step's metrics."""
        return {
            "loss": found.loss,
            **self._update(math.isfinite(found.loss)),
            **self._describe(experience),
            **found.token_means,
        }

    def expect_steps(self, count: int) -> None:
        """Set how many steps are to come, for the learning-rate schedule, unless it was given before."""
        if not self._knows_steps:
            for optimizer in self.optimizers:
                optimizer.total_steps = optimizer.steps + count

    def gradients(self) -> dict[str, torch.Tensor]:
        """Between the two halves, the gradients by parameter name; a separate critic's names begin with `critic.`."""
        critic = self.values.optimizer if self.values is not None else None
        of_critic = {} if critic is None else {f"critic.{name}": grad for name, grad in critic.gradients().items()}
        return self.optimizer.gradients() | of_critic

    @property
    def optimizers(self) -> list[Optimizer]:
        own = self.values.optimizer if self.values is not None else None
        return [self.optimizer] if own is None else [self.optimizer, own]

    def take_journal(self) -> list[JournalEntry]:
        """Decisions since the last call that the seed does not determine: smaller micro-batches."""
        return self._memory.take_journal()

    def repeat(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Repeat the decisions of another run, as far as its journal goes."""
        self._memory.repeat(entries)

    def masters(self) -> dict[str, torch.Tensor]:
        """The float32 weights of parameters that have less precision in the model, by name."""
        return self.optimizer.masters

    # -- before a batch's first step -----------------------------------------------------------------

    @torch.no_grad()
    def _prepare(self, experience: Experience) -> None:
        """At a batch's first use, compute what it lacks: log-probabilities, and each token's credit."""
        mask_BA = action_mask_of(experience)
        experience.old_log_probs = experience.action_log_probs
        if self.settings.old == "trainer" or self.algorithm.needs_proximal:
            own_BA = self._log_probs(self.policy, experience)
            experience.importance = truncated_importance(
                own_BA, experience.action_log_probs, mask_BA, cap=self.settings.importance_cap
            )
            experience.old_log_probs = own_BA
        if self._reference is not None and experience.reference_log_probs is None:
            experience.reference_log_probs = self._log_probs(self._reference, experience)
        if experience.kl is None and experience.reference_log_probs is not None:
            distance_BA = log_ratio(experience.old_log_probs, experience.reference_log_probs)
            experience.kl = distance_BA.masked_fill(~mask_BA, 0)
        credit = self._credit(experience, mask_BA)
        experience.advantages = credit.advantages_BT
        experience.returns = credit.returns_BT

    def _log_probs(self, asked: Policy | Reference, experience: Experience) -> torch.Tensor:
        """Log-probabilities of the policy or its reference for the whole batch; each trainer computes its rows."""
        shape, device = experience.action_log_probs.shape, experience.sequences.device
        log_probs_BA = torch.zeros(shape, dtype=self._dtype, device=device)
        for rows in self._micro_batches(experience):
            micro = take_rows(experience, rows)
            statistics = asked.statistics(
                micro, temperature=self._temperature, share_prompts=self.settings.share_prompts
            )
            log_probs_BA[rows, : micro.action_log_probs.shape[1]] = statistics.log_probs_BA
        self.replicas.sum_([log_probs_BA])  # each has its own rows, and 0 in the others'
        return log_probs_BA

    def _credit(self, experience: Experience, mask_BA: torch.Tensor) -> Credit:
        """The credit that the experience brings, or else that the algorithm assigns."""
        self._used_kl_coefficient = self.kl_coefficient
        if experience.advantages is not None:
            given = experience.advantages
            advantages_BA = given[:, None].expand_as(mask_BA) if given.dim() == 1 else given
            credit = Credit(advantages_BA.masked_fill(~mask_BA, 0), experience.returns)
        else:
            trajectories = Trajectories(experience)
            of_trajectories = self.algorithm.assign_credit(self._credit_inputs(experience, mask_BA))
            returns_NT = of_trajectories.returns_BT
            credit = Credit(
                trajectories.split(of_trajectories.advantages_BT),
                None if returns_NT is None else trajectories.split(returns_NT),
            )
        if self.values is not None and credit.returns_BT is None:  # advantages that came with the experience
            self.values.estimate(experience)
            assert experience.values is not None
            credit = Credit(credit.advantages_BT, credit.advantages_BT + experience.values)
        if experience.kl is not None:
            self.kl_coefficient = self.algorithm.adapted_kl_coefficient(
                self.kl_coefficient, Trajectories(experience).sum(experience.kl.sum(-1))
            )
        return credit

    def _credit_inputs(self, experience: Experience, mask_BA: torch.Tensor) -> CreditInputs:
        """The algorithm's inputs: one row for each trajectory."""
        trajectories = Trajectories(experience)
        if experience.reward is None:
            raise SettingError(
                "this experience brings neither rewards nor advantages: there is nothing to learn from it"
            )
        bootstrap_B = self.values.estimate(experience) if self.values is not None else None
        rewards_N = self.algorithm.shape_rewards(
            trajectories.first(experience.reward),
            trajectories.most(longest_turns(experience)),  # the limit is one turn's
            self.sampling.max_new_tokens,
        )
        values_BA = experience.values if self.values is not None else None
        return CreditInputs(
            rewards_N,
            trajectories.first(group_indices(experience)),
            trajectories.join(mask_BA),
            None if experience.kl is None else trajectories.join(experience.kl),
            kl_reward_coefficient=self.kl_coefficient,
            values_BT=None if values_BA is None else trajectories.join(values_BA),
            bootstrap_B=None if bootstrap_B is None else trajectories.last(bootstrap_B),
            turn_rewards_BT=None if experience.turn_rewards is None else trajectories.join(experience.turn_rewards),
        )

    # -- one step ------------------------------------------------------------------------------------

    @property
    def _dtype(self) -> torch.dtype:
        """The dtype of log-probabilities and losses."""
        return torch.promote_types(self.policy.model.dtype, torch.float32)

    @property
    def _temperature(self) -> float:
        return self.sampling.temperature or 1.0

    def _micro_batches(self, experience: Experience) -> list[list[int]]:
        is_padded = self.policy.pads_rows(experience.sequences.shape[1])
        return plan_own_rows(
            experience,
            self.replicas,
            self._memory.token_budget,
            share_prompts=self.settings.share_prompts,
            is_padded=is_padded,
        )

    def _retry_smaller(self, compute: Callable[[], Computed]) -> Computed:
        """Compute, again with smaller micro-batches if memory is short."""
        while True:
            try:
                return compute()
            except torch.OutOfMemoryError as error:
                self._memory.shrink(error, can_shrink=self.replicas.size == 1)

    def _gradients(self, experience: Experience, weights_BA: torch.Tensor) -> tuple[float, dict[str, float]]:
        """Find the gradients of this trainer's rows; returns their share of the loss and the statistics."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        losses, totals = Totals(), Totals()
        self.log_probs = torch.full_like(experience.action_log_probs, math.nan) if self.keep_log_probs else None
        for rows in self._micro_batches(experience):
            losses.add("policy", self._micro_batch(experience, rows, weights_BA, totals))
        if self.values is not None:
            self.values.separate_gradients(experience, weights_BA, losses, totals)
        return sum(losses.read().values()), totals.read()

    def _micro_batch(
        self, experience: Experience, rows: list[int], weights_BA: torch.Tensor, totals: Totals
    ) -> torch.Tensor:
        """Add the gradient of some rows; returns their share of the loss. Statistics are added to `totals`."""
        micro = take_rows(experience, rows)
        mask_BA = action_mask_of(micro)
        actions = mask_BA.shape[1]
        statistics = self.policy.statistics(
            micro,
            temperature=self._temperature,
            with_entropy=True,
            entropy_gradient=self.algorithm.trains_entropy,
            share_prompts=self.settings.share_prompts,
            value_head=self.values.head if self.values is not None else None,
        )
        if self.log_probs is not None:
            self.log_probs[rows, :actions] = statistics.log_probs_BA.detach().to(self.log_probs.dtype)
        assert micro.old_log_probs is not None
        assert micro.advantages is not None
        join = Trajectories(micro).join
        token_loss = self.algorithm.token_loss(
            TokenLossInputs(
                join(statistics.log_probs_BA),
                join(micro.old_log_probs),
                join(micro.advantages),
                join(mask_BA),
                None if statistics.entropy_BA is None else join(statistics.entropy_BA),
                None if micro.reference_log_probs is None else join(micro.reference_log_probs),
                None if micro.importance is None else join(micro.importance),
            )
        )
        own_weights_BA = weights_BA[rows, :actions]
        loss = (join(own_weights_BA) * token_loss.loss_BT).sum()
        for name, values in token_loss.statistics.items():
            totals.add(name, values)
        if self.values is not None:
            loss = loss + self.values.shared_loss(micro, statistics, own_weights_BA, totals)
        self.optimizer.backward(loss)
        return loss.detach()

    def _over_replicas(self, loss: float, sums: dict[str, float]) -> tuple[float, dict[str, float]]:
        """Sum loss, statistics and gradients over all trainers."""
        if self.replicas.size == 1:
            return loss, sums
        with self.activity.doing("meet", "adding gradients up with the other trainers"):
            losses, reports = zip(*self.replicas.gather((loss, sums)), strict=True)
            same_gradients([p for optimizer in self.optimizers for p in optimizer.parameters], self.replicas)
        return sum(losses), added_up(reports)

    def _update(self, loss_is_finite: bool) -> dict[str, float]:
        outcome = self.optimizer.step(loss_is_finite)
        metrics = {"grad_norm": outcome.grad_norm, "learning_rate": outcome.learning_rate}
        if outcome.skipped:
            metrics["skipped"] = 1.0
        return metrics | (self.values.optimizer_step(loss_is_finite) if self.values is not None else {})

    def _describe(self, experience: Experience) -> dict[str, float]:
        """Further metrics of a batch."""
        described: dict[str, float] = {}
        trajectories = Trajectories(experience)
        if experience.reward is not None:
            rewards_N = trajectories.first(experience.reward)
            described["reward"] = float(rewards_N.mean())
            described["reward_std"] = float(rewards_N.std(correction=0))
        described["completion_tokens"] = float(trajectories.sum(sampled_lengths(experience)).float().mean())
        described["samples"] = float(len(trajectories))
        described |= reward_part_means(experience)
        if experience.kl is not None:
            # Per trajectory, not per token.
            described["kl_to_reference"] = float(trajectories.sum(experience.kl.sum(-1)).mean())
            if self.algorithm.first_kl_coefficient:
                described["kl_reward_coefficient"] = self._used_kl_coefficient
        if self.values is not None:
            described |= self.values.describe(experience)
        return described

    # -- saving --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs but the policy's weights."""
        return {
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "kl_reward_coefficient": self.kl_coefficient,
            "used_coefficient": self._used_kl_coefficient,
            "memory": self._memory.state_dict(),
            **({"critic": self.values.state_dict()} if self.values is not None else {}),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore a saved state. Load the policy's weights first, as optimizers of version 0.1 begin from them."""
        if self.values is not None:
            self.values.load_state_dict(saved["critic"])
        self.kl_coefficient = saved.get("kl_reward_coefficient", self.kl_coefficient)  # version 0.1: PPO's alone
        self._used_kl_coefficient = saved.get("used_coefficient", self.kl_coefficient)
        if "memory" in saved:
            self._memory.load_state_dict(saved["memory"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)


def reward_part_means(experience: Experience) -> dict[str, float]:
    """The mean of each part of the reward over the samples that have it, before its weight; one part is the reward."""
    parts: dict[str, list[float]] = {}
    for facts in [experience.facts[rows[-1]] for rows in Trajectories(experience).rows] if experience.facts else []:
        for name, value in facts.reward_parts.items():
            if value is not None:
                parts.setdefault(name, []).append(value)
    if len(parts) < 2:
        return {}
    return {f"reward.{name}": sum(values) / len(values) for name, values in parts.items()}
