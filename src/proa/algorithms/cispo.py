"""CISPO: clipped importance sampling weights; every token keeps its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..maths.advantages import group_relative
from ..maths.losses import clipped_weight_loss
from ..maths.reductions import token_mean
from ..settings import Positive, PositiveShare
from .base import GroupAlgorithm, TokenLossInputs


@dataclass(frozen=True, kw_only=True)
class CISPO(GroupAlgorithm):
    """MiniMax, "MiniMax-M1", arXiv:2506.13585.

        A_i  = (r_i − mean(r)) / (std(r) + 1e-4)                                  within the group
        loss = 1/Σ|o_i| Σ_i Σ_t −sg[clip(ρ, 1 − ε_low, 1 + ε_high)] A_i log π

    The weight of a token's gradient is clipped, whatever the sign of its advantage, and never the gradient
    itself. PPO's clip drops the tokens whose probability has risen most, among them the rare ones at which
    reasoning turns. The paper sets no lower bound (`clip_low` 1, the default) and tunes the upper one; later work
    recommends weights of at most 5 (`clip_high` 4; Khatri et al., arXiv:2510.13786). If another library configures
    the largest weight itself, subtract 1.
    """

    name: ClassVar[str] = "cispo"

    clip_low: PositiveShare = 1.0
    """The least weight of a token is 1 − clip_low; 1 disables it."""
    clip_high: Positive = 4.0
    """The largest weight of a token is 1 + clip_high; inf disables it."""

    def advantages(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return group_relative(rewards_B, groups_B)

    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return token_mean(mask_BT, dtype=dtype)

    def _surrogate(self, inputs: TokenLossInputs, ratio_BT: Tensor) -> Tensor:
        return clipped_weight_loss(
            inputs.log_probs_BT,
            ratio_BT,
            inputs.advantages_BT,
            inputs.mask_BT,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
        )

    def _clipped(self, ratio_BT: Tensor, advantages_BT: Tensor) -> tuple[Tensor, Tensor]:
        return ratio_BT < 1 - self.clip_low, ratio_BT > 1 + self.clip_high
