"""Whitening: values in standard deviations from their mean, both taken over the real tokens of a whole batch.

Of a whole batch: done within micro-batches, what a token is worth would depend on its neighbours in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .advantages import NOISE


@torch.no_grad()
def whiten(values_BT: Tensor, mask_BT: Tensor, *, epsilon: float = 1e-8, shift_mean: bool = True) -> Tensor:
    """(x − mean) / √(var + ε) over the real tokens, with ddof 0, as in the code of Ziegler et al., arXiv:1909.08593.

    Without `shift_mean` the mean is added again, so that only the spread changes. Values that are equal but for
    float noise have no spread and give exactly 0 (or their mean). Zero where masked. A real token that is no number
    shows in every token of the batch.

    >>> whiten(torch.tensor([[1.0, 3.0], [2.0, 9.0]]), torch.tensor([[True, True], [True, False]]))
    tensor([[-1.2247,  1.2247],
            [ 0.0000,  0.0000]])
    """
    values_N = values_BT[mask_BT]  # packed: neither padding nor what stands in it can touch the sums
    if not len(values_N):
        return torch.zeros_like(values_BT)
    mean = values_N.mean()
    deviations_N = values_N - mean
    scale = (deviations_N.square().mean() + epsilon).rsqrt()
    whitened_N = (deviations_N * scale).masked_fill(nearly_constant(values_N), 0)
    return torch.zeros_like(values_BT).masked_scatter(mask_BT, whitened_N if shift_mean else whitened_N + mean)


def nearly_constant(values_N: Tensor) -> Tensor:
    """Whether one or more values are all equal but for float noise, relative to the largest of them (or to 1)."""
    bottom, top = values_N.aminmax()
    return top - bottom < NOISE * torch.maximum(top.abs(), bottom.abs()).clamp(min=1)
