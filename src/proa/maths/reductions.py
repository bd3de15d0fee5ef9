"""Weights that turn a loss per token into one number: `(weights_BT * loss_BT).sum()`.

Weights are taken once, over the whole batch, and cut into micro-batches with it; the sum of the parts is then
the whole, and any split gives the same gradient. (A mean per micro-batch would not: the mean of means weighs
the tokens of short micro-batches more.) Zero where masked; nothing to train gives zeros, not NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence_mean(mask_BT: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """1/(B |o_i|): the mean over a sequence's tokens, then over sequences (GRPO, arXiv:2402.03300).

    An empty completion counts in B and adds nothing.

    >>> sequence_mean(torch.tensor([[True, True], [True, False]])).tolist()
    [[0.25, 0.25], [0.5, 0.0]]
    """
    lengths_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return mask_BT.to(dtype) / (lengths_B1 * mask_BT.shape[0])


def token_mean(mask_BT: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """1/Σ_i |o_i|: every token of the batch counts the same (DAPO, arXiv:2503.14476).

    >>> token_mean(torch.tensor([[True, True], [True, True]])).tolist()
    [[0.25, 0.25], [0.25, 0.25]]
    """
    return mask_BT.to(dtype) / mask_BT.sum().clamp(min=1)


def constant_divisor(mask_BT: Tensor, *, divisor: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """1/(B · divisor): a token counts the same however long its completion is (Dr.GRPO, arXiv:2503.20783).

    >>> constant_divisor(torch.tensor([[True, True], [True, False]]), divisor=4).tolist()
    [[0.125, 0.125], [0.125, 0.0]]
    """
    if divisor <= 0:
        raise ValueError(f"divisor must be more than 0, not {divisor}")
    return mask_BT.to(dtype) / (mask_BT.shape[0] * divisor)
