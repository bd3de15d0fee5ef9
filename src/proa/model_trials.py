"""Trial passes of a model before it is used: how many tokens, which tokens, and whether the results agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .model_shape import context_length

_MIN_LENGTH = 16


@contextmanager
def uncompiled(module: nn.Module) -> Iterator[None]:
    """Inside, compiled layers compute as if they were not: compiling them for a few tokens would take seconds."""
    if not is_compiled(module):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def is_compiled(module: nn.Module) -> bool:
    """Whether some of its layers are compiled."""
    return any(getattr(part, "_compiled_call_impl", None) is not None for part in module.modules())


def trial_length(config: Any, length: int) -> int:
    """How many tokens to try for a model that will get `length`: at least as many, rounded up.

    So the trial also covers whatever happens beyond some length, such as a window or a chunk.

    >>> from transformers import GPT2Config
    >>> [trial_length(GPT2Config(n_positions=100), length) for length in (5, 17, 33, 70)]
    [16, 32, 64, 100]
    """
    rounded = max(_MIN_LENGTH, 1 << (length - 1).bit_length())
    context = context_length(config)
    return rounded if context is None else max(length, min(rounded, context))


def trial_tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    """Fixed random tokens, without the first few of the vocabulary, which are often special."""
    low, high = (3, min(vocabulary, 256)) if vocabulary > 8 else (0, vocabulary)
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0))


def vectors_agree(ours_NH: torch.Tensor, theirs_NH: torch.Tensor) -> bool:
    """Whether the vectors are equal up to the rounding of their dtype; NaN agrees only with NaN.

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
