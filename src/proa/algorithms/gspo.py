"""GSPO: group sequence policy optimization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..maths.advantages import group_relative
from ..maths.importance import sequence_ratio
from ..maths.reductions import sequence_mean
from ..settings import Positive, PositiveShare
from .base import GroupAlgorithm, TokenLossInputs


@dataclass(frozen=True, kw_only=True)
class GSPO(GroupAlgorithm):
    """Zheng et al., "Group sequence policy optimization", arXiv:2507.18071.

        A_i  = (r_i − mean(r)) / (std(r) + 1e-4)                                  within the group
        s_i  = (π(o_i) / π_old(o_i))^(1/|o_i|) = exp(1/|o_i| Σ_t log ρ_t)
        loss = 1/B Σ_i −min(s_i A_i, clip(s_i, 1 − ε_low, 1 + ε_high) A_i)

    The reward is for the whole completion, and so are the ratio and its clip: all its tokens are kept or none. A mean
    over many tokens stays close to 1, hence the narrow clip.

    Computed per token (`sequence_ratio`): with one advantage for all tokens of a completion, as here, loss and
    gradient are those above, and KL, entropy and importance can have their own value at each token.
    """

    name: ClassVar[str] = "gspo"

    clip_low: PositiveShare = 3e-4
    clip_high: Positive = 4e-4

    def advantages(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return group_relative(rewards_B, groups_B)

    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return sequence_mean(mask_BT, dtype=dtype)

    def _ratio(self, inputs: TokenLossInputs) -> Tensor:
        return sequence_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
