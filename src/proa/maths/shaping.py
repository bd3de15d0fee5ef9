"""Terms added to rewards before they become advantages."""

from __future__ import annotations

import torch
from torch import Tensor


def overlong_penalty(lengths_B: Tensor, *, max_length: int, buffer: int) -> Tensor:
    """DAPO's soft overlong punishment (arXiv:2503.14476, eq. 13), in [−1, 0].

    0 up to max_length − buffer, then falling linearly to −1 at max_length: clip((max_length − buffer − |o|) /
    buffer, −1, 0). Lengths may be whole numbers or floats, which keep their type.

    >>> overlong_penalty(torch.tensor([50, 80, 90, 100]), max_length=100, buffer=20).tolist()
    [0.0, 0.0, -0.5, -1.0]
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"the overlong buffer must be 1 to {max_length} tokens (the longest completion), not {buffer}")
    free = max_length - buffer
    return torch.clamp((free - lengths_B) / buffer, -1, 0)
