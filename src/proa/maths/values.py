"""What a critic learns from, and how well it does."""

from __future__ import annotations

import torch
from torch import Tensor

from .whitening import nearly_constant


def clipped_value_loss(
    values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, *, clip: float
) -> Tensor:
    """½ max((V − R)², (V_clipped − R)²) with V_clipped = clip(V, V_old − ε, V_old + ε). Zero where masked.

    It is not in the paper of PPO (arXiv:1707.06347) but in its code: a value that has moved towards its return by
    more than ε since the batch was made moves no further. A clip of inf is off. Gradients flow through the values
    alone.

    >>> values, old = torch.tensor([[1.0, 0.25]], requires_grad=True), torch.zeros(1, 2)
    >>> loss = clipped_value_loss(values, old, torch.full((1, 2), 2.0), torch.ones(1, 2, dtype=torch.bool), clip=0.5)
    >>> loss.tolist(), torch.autograd.grad(loss.sum(), values)[0].tolist()
    ([[1.125, 1.53125]], [[0.0, -1.75]])
    """
    values_BT = values_BT.masked_fill(~mask_BT, 0)
    old_values_BT = old_values_BT.detach().masked_fill(~mask_BT, 0)
    returns_BT = returns_BT.detach().masked_fill(~mask_BT, 0)
    clipped_BT = values_BT.clamp(old_values_BT - clip, old_values_BT + clip)
    return torch.maximum((values_BT - returns_BT).square(), (clipped_BT - returns_BT).square()) / 2


@torch.no_grad()
def explained_variance(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> float:
    """1 − Var(R − V) / Var(R) over the real tokens: 1 is a perfect critic, 0 one no better than a constant.

    Below 0 it is worse than that. Returns that are all equal leave nothing to explain, which counts as 0.

    >>> explained_variance(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 4.0]]), torch.ones(1, 2, dtype=torch.bool))
    0.75
    """
    returns_N = returns_BT[mask_BT]
    if not len(returns_N) or nearly_constant(returns_N):
        return 0.0
    errors_N = returns_N - values_BT[mask_BT]
    return float(1 - errors_N.var(correction=0) / returns_N.var(correction=0))
