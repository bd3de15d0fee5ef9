"""From logits to tokens: the one sampling rule of all engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from .streams import LARGEST_UNIFORM

if TYPE_CHECKING:
    from ..data.sampling import Sampling

_SMALL = 256
"""Vocabularies up to this size are summed in one step."""
_BLOCK = 64


def choose(logits_BV: torch.Tensor, uniforms_B: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row, and its log-probability over the whole vocabulary.

    Each row inverts its cumulative distribution at its own uniform number: no row depends on another.
    """
    logits_BV = logits_BV.float()
    if sampling.temperature not in (0.0, 1.0):
        logits_BV = logits_BV / sampling.temperature
    probs_BV = logits_BV.softmax(-1)
    if sampling.temperature == 0:
        tokens_B1 = logits_BV.argmax(-1, keepdim=True)
    elif sampling.top_k or sampling.top_p < 1:
        tokens_B1 = _invert(_supported(probs_BV, sampling), uniforms_B[:, None])
    else:
        tokens_B1 = _invert(probs_BV, uniforms_B[:, None])
    return tokens_B1.squeeze(-1), probs_BV.gather(-1, tokens_B1).log_().squeeze(-1)


def _invert(weights_BV: torch.Tensor, uniforms_B1: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative weight exceeds the row's share of the total."""
    if weights_BV.shape[-1] > _SMALL:
        return _invert_by_blocks(weights_BV, uniforms_B1)
    cumulative_BV = weights_BV.cumsum(-1, dtype=torch.float64)
    totals_B1 = cumulative_BV[:, -1:]
    tokens_B1 = torch.searchsorted(cumulative_BV, uniforms_B1 * totals_B1, right=True)
    return tokens_B1.clamp_(max=weights_BV.shape[-1] - 1)  # clamped: a row of NaN finds nothing


def _invert_by_blocks(weights_BV: torch.Tensor, uniforms_B1: torch.Tensor) -> torch.Tensor:
    """The same in two steps, a block of tokens and a token in it: sums are several times faster than running sums."""
    missing = -weights_BV.shape[-1] % _BLOCK
    padded_BV = functional.pad(weights_BV, (0, missing)) if missing else weights_BV
    blocks_BNK = padded_BV.view(len(weights_BV), -1, _BLOCK)
    sums_BN = blocks_BNK.sum(-1).double()
    cumulative_BN = sums_BN.cumsum(-1)
    totals_B1 = cumulative_BN[:, -1:]
    targets_B1 = uniforms_B1 * totals_B1
    block_B1 = torch.searchsorted(cumulative_BN, targets_B1, right=True).clamp_(max=sums_BN.shape[-1] - 1)
    inside_B1 = sums_BN.gather(-1, block_B1)
    before_B1 = cumulative_BN.gather(-1, block_B1) - inside_B1
    shares_B1 = ((targets_B1 - before_B1) / inside_B1).clamp_(0.0, LARGEST_UNIFORM)
    chosen_BK = blocks_BNK.gather(1, block_B1[:, :, None].expand(-1, -1, _BLOCK))[:, 0]
    return block_B1 * _BLOCK + _invert(chosen_BK, shares_B1)


def _supported(weights_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The weights with 0 outside of top-k and, among what that leaves, outside of top-p.

    Top-p keeps the likeliest tokens until their probabilities reach `top_p`: the one that crosses it is in.
    """
    vocabulary = weights_BV.shape[-1]
    sorted_BK, tokens_BK = weights_BV.topk(min(sampling.top_k, vocabulary) or vocabulary)
    if sampling.top_p < 1:
        cumulative_BK = sorted_BK.cumsum(-1, dtype=torch.float64)
        before_BK = cumulative_BK - sorted_BK
        sorted_BK = sorted_BK.where(before_BK < sampling.top_p * cumulative_BK[:, -1:], 0.0)
    return torch.zeros_like(weights_BV).scatter_(-1, tokens_BK, sorted_BK)
