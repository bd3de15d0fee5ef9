"""Losses per token, to be summed with the weights of `reductions`."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_ratio_loss(
    ratio_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """−min(ρ A, clip(ρ, 1 − clip_low, 1 + clip_high) A) with ρ = π/π_old (PPO, arXiv:1707.06347).

    Zero where masked; the ratio is 1 there, as those of `importance` are. A token already pushed past the clip in the
    direction of its advantage has no gradient; one on the wrong side keeps it:

    >>> ratio = torch.tensor([[2.0, 2.0]]).requires_grad_()   # twice as likely as when sampled
    >>> advantages, mask = torch.tensor([[1.0, -1.0]]), torch.ones(1, 2, dtype=torch.bool)
    >>> loss = clipped_ratio_loss(ratio, advantages, mask, clip_low=0.2, clip_high=0.2)
    >>> loss.tolist(), torch.autograd.grad(loss.sum(), ratio)[0].tolist()
    ([[-1.2000000476837158, 2.0]], [[0.0, 1.0]])
    """
    advantages_BT = advantages_BT.masked_fill(~mask_BT, 0)
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)


def clipped_weight_loss(
    log_probs_BT: Tensor, ratio_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """−sg[clip(ρ, 1 − clip_low, 1 + clip_high)] A log π (CISPO, arXiv:2506.13585). Zero where masked.

    The clip bounds a token's weight and takes no token's gradient: it is −clip(ρ) A for each. `ratio_BT` is a
    constant, whatever its tensor says, and 1 where masked. A token that cannot come by π has no gradient to follow.
    """
    weights_BT = ratio_BT.detach().clamp(1 - clip_low, 1 + clip_high) * advantages_BT.masked_fill(~mask_BT, 0)
    return -weights_BT * log_probs_BT.masked_fill(~mask_BT | log_probs_BT.isneginf(), 0)
