"""From logits to tokens: the one sampling rule of all engines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from .streams import LARGEST_UNIFORM

if TYPE_CHECKING:
    from ..data.sampling import Sampling

_SMALL = 256
"""Vocabularies up to this size are summed in one step."""
_BLOCK = 64


def choose(
    logits_BV: torch.Tensor, uniforms_B: torch.Tensor, sampling: Sampling, seen: Sequence[Collection[int]] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row, and its log-probability over the whole vocabulary.

    Each row inverts its cumulative distribution at its own uniform number, independent of other rows. `seen` holds the
    tokens of each row's sequence, for the repetition penalty; rows beyond it are padding.
    """
    logits_BV = logits_BV.float()
    if sampling.repetition_penalty != 1:
        tokens_B1, _ = _sample(_penalised(logits_BV, seen, sampling.repetition_penalty), uniforms_B, sampling)
        log_probs_BV = _scaled(logits_BV, sampling).log_softmax(-1)  # without the penalty, so they may be -inf
        return tokens_B1.squeeze(-1), log_probs_BV.gather(-1, tokens_B1).squeeze(-1)
    tokens_B1, probs_BV = _sample(logits_BV, uniforms_B, sampling)
    return tokens_B1.squeeze(-1), probs_BV.gather(-1, tokens_B1).log_().squeeze(-1)


def _sample(logits_BV: torch.Tensor, uniforms_B: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row, `(B, 1)`, and the probabilities of all tokens before top-k and the like."""
    logits_BV = _scaled(logits_BV, sampling)
    probs_BV = logits_BV.softmax(-1)
    if sampling.temperature == 0:
        return logits_BV.argmax(-1, keepdim=True), probs_BV
    return _invert(_supported(probs_BV, sampling), uniforms_B[:, None]), probs_BV


def _scaled(logits_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    return logits_BV if sampling.temperature in (0.0, 1.0) else logits_BV / sampling.temperature


def _penalised(logits_BV: torch.Tensor, seen: Sequence[Collection[int]], penalty: float) -> torch.Tensor:
    """The logits, with those of tokens in the row's sequence divided by the penalty, or multiplied if negative."""
    lengths = torch.tensor([len(tokens) for tokens in seen])
    rows_N = torch.arange(len(seen)).repeat_interleave(lengths).to(logits_BV.device)
    tokens_N = torch.tensor([token for tokens in seen for token in tokens], device=logits_BV.device)
    seen_N = logits_BV[rows_N, tokens_N]
    lower_N = torch.where(seen_N < 0, seen_N * penalty, seen_N / penalty)
    return logits_BV.index_put((rows_N, tokens_N), lower_N)


def _invert(weights_BV: torch.Tensor, uniforms_B1: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative weight exceeds the row's share of the total."""
    if weights_BV.shape[-1] > _SMALL:
        return _invert_by_blocks(weights_BV, uniforms_B1)
    cumulative_BV = weights_BV.cumsum(-1, dtype=torch.float64)
    totals_B1 = cumulative_BV[:, -1:]
    tokens_B1 = torch.searchsorted(cumulative_BV, uniforms_B1 * totals_B1, right=True)
    return tokens_B1.clamp_(max=weights_BV.shape[-1] - 1)  # clamped: a row of NaN finds nothing


def _invert_by_blocks(weights_BV: torch.Tensor, uniforms_B1: torch.Tensor) -> torch.Tensor:
    """The same in two steps, a block and a token in it, as sums are several times faster than running sums."""
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
    """The weights with 0 outside of top-k and, among the remaining tokens, outside of top-p and min-p."""
    if sampling.top_k or sampling.top_p < 1:
        weights_BV = _likeliest(weights_BV, sampling)
    if sampling.min_p > 0:
        weights_BV = weights_BV.where(weights_BV >= sampling.min_p * weights_BV.amax(-1, keepdim=True), 0.0)
    return weights_BV


def _likeliest(weights_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The weights with 0 outside of top-k and top-p.

    Top-p keeps the most likely tokens until their probabilities reach `top_p`, including the one that crosses it.
    """
    vocabulary = weights_BV.shape[-1]
    sorted_BK, tokens_BK = weights_BV.topk(min(sampling.top_k, vocabulary) or vocabulary)
    if sampling.top_p < 1:
        cumulative_BK = sorted_BK.cumsum(-1, dtype=torch.float64)
        before_BK = cumulative_BK - sorted_BK
        sorted_BK = sorted_BK.where(before_BK < sampling.top_p * cumulative_BK[:, -1:], 0.0)
    return torch.zeros_like(weights_BV).scatter_(-1, tokens_BK, sorted_BK)
