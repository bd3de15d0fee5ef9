"""A hash of tensors computed on their own device, such as a GPU; integer arithmetic, so the same on every device.

The bytes of all tensors, one after the other, are read as whole numbers of 32 bits, in rows of `LANES`. The hash of a
row is the sum of its numbers, each times an odd random number of its lane, modulo 2**64. So a single changed number is
always noticed, and any other accident is missed about once in 2**63 times. The rows' hashes go to the
host, where xxh3 is computed over them, and over names, shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import torch
import xxhash
from torch.nn import functional

LANES = 2**16
TOGETHER = 2**26
"""Bytes that are hashed by one launch: their numbers take four times as much memory meanwhile."""


@torch.no_grad()
def device_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Over names, shapes, dtypes and bytes in the order of names; the host waits once, for all rows."""
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        digest.update(f"{name}:{tuple(tensors[name].shape)}:{tensors[name].dtype};".encode())
    rows = [_row_hashes(together) for together in _joined([tensors[name] for name in sorted(tensors)])]
    if rows:
        digest.update(torch.cat(rows).cpu().numpy().data)
    return digest.hexdigest()


def _joined(tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The bytes of all of them in order, in pieces of `TOGETHER`."""
    waiting: list[torch.Tensor] = []
    room = TOGETHER
    for tensor in tensors:
        left = tensor.contiguous().reshape(-1).view(torch.uint8)
        while left.numel() >= room:
            yield torch.cat([*waiting, left[:room]])
            waiting, left, room = [], left[room:], TOGETHER
        waiting.append(left)
        room -= left.numel()
    if room < TOGETHER:
        yield torch.cat(waiting)


def _row_hashes(data: torch.Tensor) -> torch.Tensor:
    padded = functional.pad(data, (0, -data.numel() % (4 * LANES)))
    numbers = padded.view(torch.int32).view(-1, LANES).to(torch.int64)
    return numbers.mul_(_factors(data.device)).sum(-1)


@cache
def _factors(device: torch.device) -> torch.Tensor:
    drawn = np.random.Philox(key=0).random_raw(LANES) | np.uint64(1)
    return torch.from_numpy(drawn.view(np.int64)).to(device)
