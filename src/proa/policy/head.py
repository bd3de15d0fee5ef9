"""The output head and the statistics after it, a chunk of tokens at a time: log-probabilities and entropies, with their
gradients by hand.

With logits z, probabilities p and the token t, scaled by the inverse temperature:

    log p_t            d/dz_j  =  [j = t] − p_j
    H = −Σ p log p     d/dz_j  =  −p_j (log p_j + H)

Autograd would keep, or recompute, half a dozen tensors as large as the logits. Here the backward pass recomputes a
chunk's logits, unless they are small altogether, and turns them into their gradient; between the passes only two
numbers per token are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

LEAST = -1e4
"""A logarithm whose probability is 0 in every dtype, in place of smaller ones in sums over a distribution."""


def head_statistics(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    tokens_N: torch.Tensor,
    settings: HeadSettings,
) -> torch.Tensor:
    """Log-probability of each token and, as a second row, the entropy, `(K, N)` in float32 at least. Logits are
    `hidden @ weight.T + bias`, times the scale."""
    count = len(tokens_N)
    if settings.is_compiled:  # for whole chunks, so that there is one shape
        missing = -count % settings.chunk_tokens
        hidden_NH, tokens_N = functional.pad(hidden_NH, (0, 0, 0, missing)), functional.pad(tokens_N, (0, missing))
    statistics_KN: torch.Tensor = _HeadStatistics.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, bias_V, tokens_N, settings
    )
    return statistics_KN[:, :count]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSettings:
    """How the head is computed."""

    scale: float = 1.0
    """The factor of the logits: the inverse temperature, times the architecture's own."""
    chunk_tokens: int = 1024
    with_entropy: bool = False
    entropy_gradient: bool = True
    """Whether the entropy needs a gradient."""
    is_compiled: bool = False

    @property
    def derives_entropy(self) -> bool:
        return self.with_entropy and self.entropy_gradient


class _HeadStatistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        tokens_N: torch.Tensor,
        settings: HeadSettings,
    ) -> torch.Tensor:
        describe = _compiled(_describe) if settings.is_compiled else _describe
        kept: list[torch.Tensor] | None = (
            [] if len(tokens_N) * len(weight_VH) <= _KEPT and not settings.is_compiled else None
        )
        parts = []
        for rows in _chunks(len(tokens_N), settings.chunk_tokens):
            logits_nV = functional.linear(hidden_NH[rows], weight_VH, bias_V)
            parts.append(describe(logits_nV, tokens_N[rows], settings.scale, settings.with_entropy))
            if kept is not None:
                kept.append(logits_nV)
        log_probs_N, normalizers_N, entropy_N = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, tokens_N, normalizers_N, entropy_N, *(kept or ()))
        ctx.settings = settings
        return torch.stack((log_probs_N, entropy_N)) if settings.with_entropy else log_probs_N[None]

    @staticmethod
    def backward(ctx: Any, gradients_KN: torch.Tensor) -> Any:
        hidden_NH, weight_VH, bias_V, tokens_N, normalizers_N, entropy_N, *kept = ctx.saved_tensors
        settings: HeadSettings = ctx.settings
        derive = _compiled(_derive) if settings.is_compiled else _derive
        of_hidden_NH = torch.empty_like(hidden_NH) if ctx.needs_input_grad[0] else None
        of_weight_VH = _wide_zeros(weight_VH) if ctx.needs_input_grad[1] else None
        of_bias_V = _wide_zeros(bias_V) if bias_V is not None and ctx.needs_input_grad[2] else None
        for place, rows in enumerate(_chunks(len(tokens_N), settings.chunk_tokens)):
            logits_nV = kept[place] if kept else functional.linear(hidden_NH[rows], weight_VH, bias_V)
            gradient_nV = derive(
                logits_nV, tokens_N[rows], normalizers_N[rows], entropy_N[rows], gradients_KN[:, rows], settings.scale,
                settings.derives_entropy,
            ).to(hidden_NH.dtype)  # fmt: skip
            if of_hidden_NH is not None:
                torch.mm(gradient_nV, weight_VH, out=of_hidden_NH[rows])
            if of_weight_VH is not None:
                _add_product_(of_weight_VH, gradient_nV, hidden_NH[rows])
            if of_bias_V is not None:
                of_bias_V += gradient_nV.sum(0, dtype=of_bias_V.dtype)
        of_weight_VH = None if of_weight_VH is None else of_weight_VH.to(weight_VH.dtype)
        of_bias_V = None if of_bias_V is None or bias_V is None else of_bias_V.to(bias_V.dtype)
        return of_hidden_NH, of_weight_VH, of_bias_V, None, None


_KEPT = 2**23
"""The most logits that are kept for the backward pass: 32 MiB in float32."""


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, count, size)]


def _describe(
    logits_nV: torch.Tensor, tokens_n: torch.Tensor, scale: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probability of each token, its log-normalizer, and the entropy."""
    scaled_nV = _wide(logits_nV) if scale == 1.0 else _wide(logits_nV) * scale
    normalizers_n = scaled_nV.logsumexp(-1)
    log_probs_n = scaled_nV.gather(-1, tokens_n[:, None])[:, 0] - normalizers_n
    if not with_entropy:
        return log_probs_n, normalizers_n, torch.zeros_like(log_probs_n)
    log_probs_nV = scaled_nV - normalizers_n[:, None]
    # A token that cannot come adds 0 · log 0 = 0; as numbers, 0 × -inf would be NaN.
    return log_probs_n, normalizers_n, -(log_probs_nV.exp() * log_probs_nV.clamp_(min=LEAST)).sum(-1)


def _derive(
    logits_nV: torch.Tensor,
    tokens_n: torch.Tensor,
    normalizers_n: torch.Tensor,
    entropy_n: torch.Tensor,
    gradients_Kn: torch.Tensor,
    scale: float,
    with_entropy: bool,
) -> torch.Tensor:
    """The gradient of the logits."""
    own_n1 = gradients_Kn[0, :, None] * scale
    log_probs_nV = torch.sub(_wide(logits_nV) if scale == 1.0 else _wide(logits_nV) * scale, normalizers_n[:, None])
    factor_nV = -own_n1
    if with_entropy:
        of_entropy_n1 = gradients_Kn[1, :, None] * -scale
        factor_nV = (log_probs_nV.clamp(min=LEAST) + entropy_n[:, None]).mul_(of_entropy_n1).add_(factor_nV)
    return log_probs_nV.exp_().mul_(factor_nV).scatter_add_(-1, tokens_n[:, None], own_n1)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _wide_zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))


def _add_product_(total_VH: torch.Tensor, gradient_nV: torch.Tensor, hidden_nH: torch.Tensor) -> None:
    if total_VH.dtype == hidden_nH.dtype:
        total_VH.addmm_(gradient_nV.t(), hidden_nH)
    elif total_VH.is_cuda:  # added up in float32 inside the product
        torch.addmm(total_VH, gradient_nV.t(), hidden_nH, out_dtype=total_VH.dtype, out=total_VH)
    else:
        total_VH += gradient_nV.t() @ hidden_nH


_COMPILED: dict[Any, Any] = {}


def _compiled(function: Any) -> Any:
    """The function compiled, once for each shape: its passes over the logits become one or two."""
    if function not in _COMPILED:
        _COMPILED[function] = torch.compile(function, dynamic=False)
    return _COMPILED[function]
