"""RLOO: REINFORCE with the other completions of the prompt as baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..maths.advantages import leave_one_out
from ..maths.reductions import constant_divisor
from .base import GroupAlgorithm


@dataclass(frozen=True, kw_only=True)
class RLOO(GroupAlgorithm):
    """Ahmadian et al., "Back to basics", arXiv:2402.14740.

        A_i  = r_i − 1/(G−1) Σ_{j≠i} r_j                                          within the group
        ∇    = −1/B Σ_i A_i ∇log π(o_i),   log π(o_i) = Σ_t log π(o_{i,t})

    The paper's action is the whole completion, so a completion's tokens are summed, never averaged over its
    length. The sum is divided by the constant `max_new_tokens`: this keeps the direction, and gives losses and
    gradient norms, and so clipping thresholds, the same scale as in the other algorithms.

    The paper draws new samples for every step. Detached samples may be stale, so each token keeps its clipped
    ratio ρ: while ρ is 1 the gradient is exactly the one above. The ratio is per token because that of a whole
    completion, their product, is soon 0 or infinite. (With equal group sizes this is Dr.GRPO times G/(G−1).)
    """

    name: ClassVar[str] = "rloo"

    def advantages(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return leave_one_out(rewards_B, groups_B)

    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return constant_divisor(mask_BT, divisor=max_new_tokens, dtype=dtype)
