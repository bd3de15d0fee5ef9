"""REINFORCE++: no critic; advantages are normalized over the whole batch instead of the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..maths.advantages import group_relative
from ..maths.gae import rewards_to_go
from ..maths.reductions import token_mean
from ..maths.whitening import whiten
from .base import Credit, CreditInputs, GroupAlgorithm
from .token_rewards import TokenRewardAlgorithm


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlus(TokenRewardAlgorithm):
    """Hu et al., "REINFORCE++", arXiv:2501.03262.

        r_t  = −β (log π_old − log π_ref), plus the completion's reward at its last token
        A_t  = Σ_{k≥t} r_k,   A_t ← (A_t − mean) / √(var + 1e-8)                  over the batch's tokens
        loss = 1/Σ|o_i| Σ_i Σ_t −min(ρ A_t, clip(ρ, 1 − ε, 1 + ε) A_t)

    The baseline is the batch's mean, so one completion per prompt is enough, and many prompts are better. Unlike the
    standard deviation of a small group, that of a whole batch does not favour prompts by their difficulty.
    """

    name: ClassVar[str] = "reinforce_pp"

    def assign_credit(self, inputs: CreditInputs) -> Credit:
        returns_BT = rewards_to_go(self._token_rewards(inputs), inputs.mask_BT)
        return Credit(whiten(returns_BT, inputs.mask_BT))

    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return token_mean(mask_BT, dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlusBaseline(GroupAlgorithm):
    """Hu et al., "REINFORCE++", arXiv:2501.03262, the variant with a baseline, for several completions of a prompt.

        A_i  = r_i − mean(r)                                                      within the group
        A_t  = (A_i − mean) / √(var + 1e-8)                                       over the batch's tokens
        loss = 1/Σ|o_i| Σ_i Σ_t [−min(ρ A_t, clip(ρ, 1 − ε, 1 + ε) A_t) + β k2]

    The group's mean removes the difficulty of a prompt; the scale is the batch's. β (`kl_coefficient`) weighs k2, whose
    gradient is that of the reverse KL.
    """

    name: ClassVar[str] = "reinforce_pp_baseline"

    kl_estimator: Literal["k1", "k2", "k3"] = "k2"

    def advantages(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return group_relative(rewards_B, groups_B, scale_by_std=False)

    def assign_credit(self, inputs: CreditInputs) -> Credit:
        return Credit(whiten(super().assign_credit(inputs).advantages_BT, inputs.mask_BT))

    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return token_mean(mask_BT, dtype=dtype)
