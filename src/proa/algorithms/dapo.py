"""DAPO: decoupled clip and dynamic sampling policy optimization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..maths.advantages import equal_within_group, group_relative
from ..maths.reductions import token_mean
from ..maths.shaping import overlong_penalty
from ..settings import Count, Positive
from .base import GroupAlgorithm


@dataclass(frozen=True, kw_only=True)
class DAPO(GroupAlgorithm):
    """Yu et al., "DAPO: an open-source LLM reinforcement learning system at scale", arXiv:2503.14476.

        r_i  ← r_i + overlong_penalty(|o_i|)                     if `overlong_buffer` is set
        A_i  = (r_i − mean(r)) / (std(r) + 1e-4)                 within the group
        loss = 1/Σ|o_i| Σ_i Σ_t −min(ρ A_i, clip(ρ, 1 − ε_low, 1 + ε_high) A_i)

    Four changes to GRPO: the upper clip is wider, so that rare tokens can become likely; groups of equal rewards have
    no gradient and are replaced (dynamic sampling); all tokens have equal weight; completions near the limit get a
    gradual penalty. A group of one is never kept.
    """

    name: ClassVar[str] = "dapo"
    filter_reason: ClassVar[str] = "zero_variance"

    clip_high: Positive = 0.28
    overlong_buffer: Count = 0
    """The last tokens before the limit, which cost up to 1 of reward; 0 disables it. The paper uses 4,096 of 20,480."""

    def shape_rewards(self, rewards_B: Tensor, lengths_B: Tensor, max_new_tokens: int) -> Tensor:
        if not self.overlong_buffer:
            return rewards_B
        lengths_B = lengths_B.to(rewards_B.dtype)
        return rewards_B + overlong_penalty(lengths_B, max_length=max_new_tokens, buffer=self.overlong_buffer)

    def keeps_group(self, rewards_G: Tensor) -> bool:
        one_group_G = torch.zeros(len(rewards_G), dtype=torch.long, device=rewards_G.device)
        return not bool(equal_within_group(rewards_G, one_group_G).all())

    def advantages(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return group_relative(rewards_B, groups_B)

    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return token_mean(mask_BT, dtype=dtype)
