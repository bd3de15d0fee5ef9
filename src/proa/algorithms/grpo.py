"""GRPO: group relative policy optimization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..maths.advantages import group_relative
from ..maths.reductions import sequence_mean
from .base import GroupAlgorithm


@dataclass(frozen=True, kw_only=True)
class GRPO(GroupAlgorithm):
    """Shao et al., "DeepSeekMath", arXiv:2402.03300.

        A_i  = (r_i − mean(r)) / (std(r) + 1e-4)                                  within the group
        loss = 1/B Σ_i 1/|o_i| Σ_t [−min(ρ A_i, clip(ρ, 1 − ε, 1 + ε) A_i) + β k3]

    All completions have equal weight, so a token of a long one has less. β (`kl_coefficient`) is 0.04 in the paper
    and 0 here, as in DAPO and Dr.GRPO, so no reference model is needed.
    """

    name: ClassVar[str] = "grpo"

    def advantages(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return group_relative(rewards_B, groups_B)

    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return sequence_mean(mask_BT, dtype=dtype)
