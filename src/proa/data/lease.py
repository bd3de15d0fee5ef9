"""Leases: the pieces in which generation work is handed out, and what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .experience import BufferItem


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in its place in the run's seeded order (`ordinal` counts on over passes of the data)."""

    ordinal: int
    tokens: tuple[int, ...]
    text: Any
    """The prompt as the task gave it: a string, or chat messages."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the task's row holds; rewards get it by name."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A fixed piece of generation work. Its content follows from its id and version alone."""

    id: int
    version: int
    prompts: tuple[Prompt, ...]
    seeds: tuple[tuple[int, ...], ...]
    """For each prompt, one seed per sample."""

    @property
    def samples(self) -> int:
        return sum(map(len, self.seeds))


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a maker made of a lease: one item per sample, groups together and in the lease's order."""

    lease_id: int
    items: tuple[BufferItem, ...]


def sample_seed(run_seed: int, ordinal: int, sample: int) -> int:
    """The seed of one sample's random stream: the same whoever generates it, and whenever.

    >>> sample_seed(0, 5, 1) == sample_seed(0, 5, 1) != sample_seed(0, 5, 2)
    True
    """
    digest = hashlib.blake2b(f"{run_seed}/{ordinal}/{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # torch's generators take 63 bits
