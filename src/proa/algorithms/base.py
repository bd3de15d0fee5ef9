"""The interface of algorithms: from rewards to advantages, and from advantages to a loss per token with its weights.

How a batch is processed:

    kept       = algorithm.keeps_group(rewards_G)                        # group by group
    rewards_B  = algorithm.shape_rewards(rewards_B, lengths_B, max_new_tokens)
    credit     = algorithm.assign_credit(CreditInputs(rewards_B, groups_B, mask_BT, ...))
    weights_BT = algorithm.token_weights(mask_BT, max_new_tokens)        # once, over the whole batch
    for rows in micro_batches:
        loss_BT = algorithm.token_loss(TokenLossInputs(..., credit.advantages_BT[rows], ...)).loss_BT
        (weights_BT[rows] * loss_BT).sum().backward()                    # the split does not matter
"""

# ruff: noqa: N815 -- tensor shapes are suffixes of fields too

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..errors import SettingError
from ..maths.importance import probability_ratio
from ..maths.kl import ESTIMATORS
from ..maths.losses import clipped_ratio_loss
from ..settings import NotNegative, Positive, PositiveShare, Settings


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """The values of a whole batch from which rewards are spread over tokens. All are constants."""

    rewards_B: Tensor
    groups_B: Tensor
    """Which completions belong to one prompt: indices 0 to n-1."""
    mask_BT: Tensor
    """Bool: True at the completion's tokens."""
    kl_BT: Tensor | None = None
    """log π_old − log π_ref of each token, if there is a reference."""
    kl_reward_coefficient: float = 0.0
    """The cost in reward of a unit of KL; it may be adapted from step to step."""
    values_BT: Tensor | None = None
    """The critic's value before each token."""
    bootstrap_B: Tensor | None = None
    """The critic's value after a completion that was truncated at its limit; 0 if the completion ended."""
    turn_rewards_BT: Tensor | None = None
    """What an environment gave for each turn, at its last token; it is part of `rewards_B`."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Advantages of tokens, and the returns that the critic should learn; zero where masked."""

    advantages_BT: Tensor
    returns_BT: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TokenLossInputs:
    """The values of some rows of a batch, per token.

    Gradients flow through `log_probs_BT` and `entropy_BT` alone; the rest are constants.
    """

    log_probs_BT: Tensor
    old_log_probs_BT: Tensor
    advantages_BT: Tensor
    mask_BT: Tensor
    """Bool: True at the tokens to train on."""
    entropy_BT: Tensor | None = None
    reference_log_probs_BT: Tensor | None = None
    importance_BT: Tensor | None = None
    """Weights of the policy term, such as those of `truncated_importance`."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """A loss per token, and statistics to report; both zero where masked."""

    loss_BT: Tensor
    statistics: dict[str, Tensor]
    """Detached, per token: `ratio`, which is clipped; `clipped_low` and `clipped_high`, 1 where the clip changed the
    gradient; `kl` and `entropy` if they are known."""


@dataclass(frozen=True, kw_only=True)
class Algorithm(Settings, ABC):
    """A policy-gradient algorithm: settings, and five functions of tensors.

    The annotation of a setting says which values are allowed; a subclass is a frozen dataclass too. An algorithm
    declares what it needs from a run; no code depends on its name.
    """

    name: ClassVar[str]
    """For messages, and in configurations for the built-in ones; by default the name of the class."""
    min_group: ClassVar[int] = 1
    """The least number of rewarded completions of a prompt that can be trained on."""
    filter_reason: ClassVar[str] = "filtered"
    """Under which name the ledger counts samples of groups that `keeps_group` refuses."""
    needs_critic: ClassVar[bool] = False
    """Not to be set: classes derived from `CriticAlgorithm` need one."""
    needs_proximal: ClassVar[bool] = False
    """The ratio is relative to the trainer's first pass over a batch, whatever `old` says."""

    clip_low: PositiveShare = 0.2
    """A ratio below 1 − clip_low is not decreased further; 1 disables it."""
    clip_high: Positive = 0.2
    """A ratio above 1 + clip_high is not increased further; inf disables it."""
    kl_coefficient: NotNegative = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: NotNegative = 0.0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = vars(cls).get("name", cls.__name__)
        if "keeps_group" in vars(cls) and "filter_reason" not in vars(cls):
            cls.filter_reason = Algorithm.filter_reason  # the base's may not be true of another filter
        if cls.needs_critic and not hasattr(cls, "value_loss"):
            raise SettingError(
                f"{cls.__name__} needs a critic, and does not say how it learns: derive it from CriticAlgorithm, which "
                "has value_loss, instead of setting needs_critic"
            )

    @property
    def trains_entropy(self) -> bool:
        """Whether the loss has a gradient through `entropy_BT`: here by its coefficient alone; a `token_loss` of your
        own may use it as it likes."""
        own = next(kind for kind in type(self).__mro__ if "token_loss" in vars(kind))
        return self.entropy_coefficient > 0 or own.__module__.partition(".")[0] != __package__.partition(".")[0]

    def shape_rewards(self, rewards_B: Tensor, lengths_B: Tensor, max_new_tokens: int) -> Tensor:
        """The rewards to compare; unchanged unless the algorithm adds a term. `lengths_B` is of each sample's longest
        turn, and `max_new_tokens` what a turn may have."""
        return rewards_B

    def keeps_group(self, rewards_G: Tensor) -> bool:
        """Whether to train on the completions of one prompt; if not, another prompt replaces it."""
        return True

    @abstractmethod
    def assign_credit(self, inputs: CreditInputs) -> Credit:
        """An advantage for each token of the whole batch, and returns if there is a critic."""

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities of the frozen initial policy are needed."""
        return self.kl_coefficient > 0

    @property
    def first_kl_coefficient(self) -> float:
        """The initial cost in reward of a unit of KL (`CreditInputs.kl_reward_coefficient`)."""
        return 0.0

    def adapted_kl_coefficient(self, coefficient: float, kl_B: Tensor) -> float:
        """The coefficient after a batch whose completions had this KL to the reference."""
        return coefficient

    @abstractmethod
    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight of each token of the whole batch in the loss, in the loss's dtype; zero where masked."""

    def token_loss(self, inputs: TokenLossInputs) -> TokenLoss:
        """Clipped surrogate × importance + kl_coefficient · KL − entropy_coefficient · entropy, per token."""
        loss_BT = self._surrogate(inputs, self._ratio(inputs))
        if inputs.importance_BT is not None:
            loss_BT = loss_BT * inputs.importance_BT.detach().masked_fill(~inputs.mask_BT, 1)
        # A term with coefficient 0 is left out, not multiplied: 0 × inf is NaN, and its gradient costs time.
        if self.kl_coefficient:
            loss_BT = loss_BT + self.kl_coefficient * self._kl(inputs)
        if self.entropy_coefficient:
            loss_BT = loss_BT - self.entropy_coefficient * self._entropy(inputs)
        return TokenLoss(loss_BT, self._statistics(inputs))

    def _ratio(self, inputs: TokenLossInputs) -> Tensor:
        """The ratio that is clipped; 1 where masked."""
        return probability_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)

    def _surrogate(self, inputs: TokenLossInputs, ratio_BT: Tensor) -> Tensor:
        """The policy loss before importance weights; zero where masked."""
        return clipped_ratio_loss(
            ratio_BT, inputs.advantages_BT, inputs.mask_BT, clip_low=self.clip_low, clip_high=self.clip_high
        )

    def _clipped(self, ratio_BT: Tensor, advantages_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Where the clip changed the gradient, below and above; never where the ratio is 1."""
        low_BT, high_BT = ratio_BT < 1 - self.clip_low, ratio_BT > 1 + self.clip_high
        return low_BT & (advantages_BT < 0), high_BT & (advantages_BT > 0)

    def _kl(self, inputs: TokenLossInputs) -> Tensor:
        if inputs.reference_log_probs_BT is None:
            raise SettingError(f"kl_coefficient={self.kl_coefficient} needs the reference model's log-probabilities")
        return ESTIMATORS[self.kl_estimator](inputs.log_probs_BT, inputs.reference_log_probs_BT, inputs.mask_BT)

    def _entropy(self, inputs: TokenLossInputs) -> Tensor:
        if inputs.entropy_BT is None:
            raise SettingError(f"entropy_coefficient={self.entropy_coefficient} needs the entropy of each token")
        return inputs.entropy_BT.masked_fill(~inputs.mask_BT, 0)

    @torch.no_grad()
    def _statistics(self, inputs: TokenLossInputs) -> dict[str, Tensor]:
        ratio_BT = self._ratio(inputs)
        clipped_low_BT, clipped_high_BT = self._clipped(ratio_BT, inputs.advantages_BT)
        statistics = {
            "ratio": ratio_BT.masked_fill(~inputs.mask_BT, 0),
            "clipped_low": clipped_low_BT.to(ratio_BT.dtype),
            "clipped_high": clipped_high_BT.to(ratio_BT.dtype),
        }
        if inputs.reference_log_probs_BT is not None:
            statistics["kl"] = self._kl(inputs)
        if inputs.entropy_BT is not None:
            statistics["entropy"] = self._entropy(inputs)
        return statistics


@dataclass(frozen=True, kw_only=True)
class GroupAlgorithm(Algorithm):
    """An algorithm without a critic that compares the completions of a prompt: one advantage for all tokens of each."""

    min_group: ClassVar[int] = 2

    @abstractmethod
    def advantages(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        """The advantage of each completion; `groups_B` are indices 0 to n-1."""

    def assign_credit(self, inputs: CreditInputs) -> Credit:
        advantages_B = self.advantages(inputs.rewards_B, inputs.groups_B)
        return Credit(advantages_B[:, None].expand_as(inputs.mask_BT).masked_fill(~inputs.mask_BT, 0))
