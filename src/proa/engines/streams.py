"""Random streams determined by seed and position alone: SplitMix64, for many seeds at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

LARGEST_UNIFORM = 1 - 2.0**-52
"""The largest number drawn, so that `u * total < total` holds after rounding."""

_GOLDEN = 0x9E3779B97F4A7C15
_MIXERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def uniforms(seeds: Sequence[int], count: int, first: int = 0) -> torch.Tensor:
    """`count` numbers of each seed's stream, from place `first`: float64 in [0, 1), `(seeds, count)`.

    They are multiples of 2^-52.

    >>> uniforms([3], 2, first=1)[0].tolist() == uniforms([7, 3], 5)[1, 1:3].tolist()
    True
    """
    seeds_S = torch.tensor([_signed(seed) for seed in seeds], dtype=torch.int64)
    counters_N = torch.arange(first + 1, first + count + 1, dtype=torch.int64) * _signed(_GOLDEN)
    # Mixing the seed first sends neighbouring seeds to far places of the one long sequence.
    bits_SN = _mix(_mix(seeds_S + _signed(_GOLDEN))[:, None] + counters_N)
    return _shift(bits_SN, 12).to(torch.float64) * 2.0**-52


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser; int64 products wrap as unsigned ones do."""
    bits = (bits ^ _shift(bits, 30)) * _signed(_MIXERS[0])
    bits = (bits ^ _shift(bits, 27)) * _signed(_MIXERS[1])
    return bits ^ _shift(bits, 31)


def _shift(bits: torch.Tensor, places: int) -> torch.Tensor:
    """Shift right without torch's sign extension."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _signed(number: int) -> int:
    """The int64 with the lowest 64 bits of a number."""
    return (number + 2**63) % 2**64 - 2**63
