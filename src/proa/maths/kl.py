"""Estimators of KL(π‖π_ref) per token, from tokens sampled by π (Schulman, "Approximating KL divergence", 2020).

With d = log π_ref − log π. What an estimator is worth as a metric and as a loss differ, because the gradient of
an unbiased estimate is not an unbiased estimate of the gradient:

| estimator | value | expected gradient under π |
| --- | --- | --- |
| k1 = −d | unbiased, noisy, may be negative | 0: as a loss it does nothing |
| k2 = d²/2 | biased | that of KL(π‖π_ref) |
| k3 = eᵈ − d − 1 | unbiased, never negative | that of the forward KL(π_ref‖π) |

The reference is a constant, whatever its tensor says. Zero where masked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .importance import log_ratio


def k1(log_probs_BT: Tensor, reference_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log π − log π_ref; its expected gradient is 0."""
    return -_log_ratio(log_probs_BT, reference_log_probs_BT, mask_BT)


def k2(log_probs_BT: Tensor, reference_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(log π − log π_ref)² / 2; its gradient is that of the reverse KL, KL(π‖π_ref)."""
    return _log_ratio(log_probs_BT, reference_log_probs_BT, mask_BT).square() / 2


def k3(log_probs_BT: Tensor, reference_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """π_ref/π − log(π_ref/π) − 1, the one of GRPO (arXiv:2402.03300); its gradient is that of the forward KL,
    KL(π_ref‖π)."""
    log_ratio_BT = _log_ratio(log_probs_BT, reference_log_probs_BT, mask_BT)
    return torch.expm1(log_ratio_BT) - log_ratio_BT  # exp − 1 loses all digits near 0, where policies start


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def _log_ratio(log_probs_BT: Tensor, reference_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return log_ratio(reference_log_probs_BT.detach(), log_probs_BT).masked_fill(~mask_BT, 0)
