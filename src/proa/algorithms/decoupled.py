"""Decoupled PPO: the policy that sampled a token and the policy that its update stays close to are two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import SettingError
from ..maths.advantages import group_relative
from ..maths.reductions import token_mean
from .base import GroupAlgorithm, TokenLoss, TokenLossInputs


@dataclass(frozen=True, kw_only=True)
class DecoupledPPO(GroupAlgorithm):
    """Hilton et al., "Batch size-invariance for policy optimization", arXiv:2110.00641; for asynchronous training of
    language models Fu et al., "AReaL", arXiv:2505.24298.

        A_i  = (r_i − mean(r)) / (std(r) + 1e-4)                                  within the group
        w    = min(π_prox / π_behav, cap),   ρ = π / π_prox
        loss = 1/Σ|o_i| Σ_i Σ_t −w min(ρ A_i, clip(ρ, 1 − ε, 1 + ε) A_i)

    With stale samples, a clip around the policy that made them (π_behav) pulls towards an old policy. Here the clip
    is around the trainer's policy at the batch's first use (π_prox), and w corrects for the sampler. The arithmetic
    is that of `old: trainer` in the other algorithms; here it always applies, whatever `old` says:

    | | ρ is π over | w |
    | --- | --- | --- |
    | `old: sampler` | what the sampler recorded | none |
    | `old: trainer`, and `decoupled` always | the trainer's first pass | that pass over what the sampler recorded |

    So in the first epoch over a batch ρ is 1 and nothing is clipped; the clip acts from the second on. The cap is
    the trainer's `importance_cap`: a larger w counts as the cap. (AReaL's code leaves such tokens out instead.)
    """

    name: ClassVar[str] = "decoupled"
    needs_proximal: ClassVar[bool] = True

    def advantages(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return group_relative(rewards_B, groups_B)

    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return token_mean(mask_BT, dtype=dtype)

    def token_loss(self, inputs: TokenLossInputs) -> TokenLoss:
        if inputs.importance_BT is None:
            raise SettingError("decoupled needs the weights π_prox / π_behav of each token")
        return super().token_loss(inputs)
