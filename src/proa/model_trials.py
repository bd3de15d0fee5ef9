"""Trying a model before it is relied on: at which length, with which tokens, and whether the outcome is right."""

from __future__ import annotations

from typing import Any

import torch

from .model_shape import context_length

_SHORTEST = 16


def trial_length(config: Any, length: int) -> int:
    """How many tokens to try before a model is given `length` of them: at least as many, and few different numbers.

    So whatever happens beyond some length, a window under any name or a chunk, happens in the trial too.

    >>> from transformers import GPT2Config
    >>> [trial_length(GPT2Config(n_positions=100), length) for length in (5, 17, 33, 70)]
    [16, 32, 64, 100]
    """
    rounded = max(_SHORTEST, 1 << (length - 1).bit_length())
    context = context_length(config)
    return rounded if context is None else max(length, min(rounded, context))


def trial_tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    """The same tokens every time. The first few of a vocabulary are left out, for they are often special."""
    low, high = (3, min(vocabulary, 256)) if vocabulary > 8 else (0, vocabulary)
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0))


def vectors_agree(ours_NH: torch.Tensor, theirs_NH: torch.Tensor) -> bool:
    """Whether the vectors are the others up to the rounding of their dtype; NaN agrees with NaN alone.

    Two ways to compute a float32 vector through a hundred layers of ten thousand terms each differ by about
    sqrt(100) * sqrt(10,000) * 2**-24, less than 1e-4 of its length; in bfloat16, which rounds each layer's sum to
    2**-9, by about sqrt(2 * 100) * 2**-9, 3 %. A token that sees what it should not, or from another position,
    changes by more. In half precision rounding may also send a token to another expert, so there one in eight may
    differ.

    >>> vectors_agree(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0001]]))
    True
    >>> vectors_agree(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[1.0, 2.0], [0.0, 1.01]]))
    False
    """
    if ours_NH.shape != theirs_NH.shape or not torch.equal(ours_NH.isnan(), theirs_NH.isnan()):
        return False
    is_half = theirs_NH.dtype in (torch.bfloat16, torch.float16)
    tolerance, may_differ = (0.05, 1 / 8) if is_half else (1e-3, 0.0)
    ours_NH, theirs_NH = (vectors.double().nan_to_num(0.0, 0.0, 0.0) for vectors in (ours_NH, theirs_NH))
    differ_N = (ours_NH - theirs_NH).norm(dim=-1) > tolerance * theirs_NH.norm(dim=-1)
    return float(differ_N.double().mean()) <= may_differ
