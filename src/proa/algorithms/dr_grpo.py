"""Dr.GRPO: GRPO done right, without its two biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..maths.advantages import group_relative
from ..maths.reductions import constant_divisor
from .base import GroupAlgorithm


@dataclass(frozen=True, kw_only=True)
class DrGRPO(GroupAlgorithm):
    """Liu et al., "Understanding R1-Zero-like training", arXiv:2503.20783.

        A_i  = r_i − mean(r)                                                      within the group
        loss = 1/(B · max_new_tokens) Σ_i Σ_t −min(ρ A_i, clip(ρ, 1 − ε, 1 + ε) A_i)

    Dividing by the standard deviation favours prompts that are too easy or too hard; dividing by the length
    makes wrong answers grow. Neither is done: the divisor is a constant.
    """

    name: ClassVar[str] = "dr_grpo"

    def advantages(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return group_relative(rewards_B, groups_B, scale_by_std=False)

    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return constant_divisor(mask_BT, divisor=max_new_tokens, dtype=dtype)
