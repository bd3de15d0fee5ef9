"""Ratios of two policies' probabilities for the same token."""

from __future__ import annotations

from torch import Tensor


def log_ratio(log_probs: Tensor, other_log_probs: Tensor) -> Tensor:
    """log π − log π', and 0, without a gradient, for a token that can come by neither: −inf on both sides.

    >>> import torch
    >>> impossible, possible = torch.tensor(-torch.inf), torch.tensor(-1.0)
    >>> [float(log_ratio(*pair)) for pair in ((impossible, impossible), (impossible, possible), (possible, possible))]
    [0.0, -inf, 0.0]
    """
    by_neither = log_probs.isneginf() & other_log_probs.isneginf()
    return (log_probs - other_log_probs).masked_fill(by_neither, 0)


def probability_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """π/π_old = exp(log π − log π_old), 1 where masked; π_old is a constant, whatever its tensor says.

    So `log_probs_BT` itself may be given as old: the ratio is exactly 1 and its gradient is ∇log π.
    """
    log_ratio_BT = log_ratio(log_probs_BT, old_log_probs_BT.detach())
    # Before exp, never after: the gradient of `where(mask, exp(inf), 0)` is 0 × inf, which is NaN.
    return log_ratio_BT.masked_fill(~mask_BT, 0).exp()


def sequence_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """s = exp(1/|o| Σ_t log π/π_old), the same at every token of a completion (GSPO, arXiv:2507.18071). 1 where masked.

    Each token has the gradient of its own probability only, as in the paper's GSPO-token: sg[s] · π/sg[π].
    Averaged over the completion these are the gradient of s itself, and each may be given an advantage of its own.
    """
    log_ratio_BT = log_ratio(log_probs_BT.detach(), old_log_probs_BT.detach()).masked_fill(~mask_BT, 0)
    # A running sum: padding that follows adds zeros at its end, where `sum` would change the order of additions.
    total_B1 = log_ratio_BT.cumsum(dim=1)[:, -1:].sum(dim=1, keepdim=True)
    mean_B1 = total_B1 / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    own_BT = log_ratio(log_probs_BT, log_probs_BT.detach())  # 0, with a gradient
    return (mean_B1 + own_BT).masked_fill(~mask_BT, 0).exp()


def truncated_importance(
    trainer_log_probs_BT: Tensor, sampler_log_probs_BT: Tensor, mask_BT: Tensor, *, cap: float
) -> Tensor:
    """min(π_train/π_rollout, cap): weights that correct for a sampler whose numbers differ from the trainer's.

    Truncated importance sampling (Espeholt et al., arXiv:1802.01561; for rollout engines Yao et al., 2025,
    "Your efficient RL framework secretly brings you off-policy RL training"). A constant: no gradient flows
    through it. 1 where masked.
    """
    return probability_ratio(trainer_log_probs_BT.detach(), sampler_log_probs_BT, mask_BT).clamp(max=cap)
