"""How a run's work is divided into leases, and the result of filtering a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..data.experience import BufferItem
from ..data.lease import Lease, Prompt, sample_seed

Schedule = Literal["in_order", "windowed"]


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """How a run's work is divided into leases, and how far ahead they are admitted."""

    prompts_per_step: int
    lease_prompts: int
    group_size: int
    total_steps: int
    update_steps: int = 1
    max_staleness: int = 1
    schedule: Schedule = "in_order"
    max_refill: int = 3
    """How many times its own leases a step may admit in addition, if filtering leaves it short."""
    buffer_limit: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.prompts_per_step % self.lease_prompts:
            raise ValueError(
                f"lease_prompts={self.lease_prompts} does not divide the {self.prompts_per_step} prompts of a batch"
            )

    @property
    def leases_per_step(self) -> int:
        return self.prompts_per_step // self.lease_prompts

    def lease(self, lease_id: int, version: int, prompt: Callable[[int], Prompt]) -> Lease:
        """The lease of that id and version; `prompt` returns a prompt by its ordinal."""
        first = lease_id * self.lease_prompts
        ordinals = range(first, first + self.lease_prompts)
        return Lease(
            lease_id,
            version,
            tuple(prompt(ordinal) for ordinal in ordinals),
            tuple(
                tuple(sample_seed(self.seed, ordinal, sample) for sample in range(self.group_size))
                for ordinal in ordinals
            ),
        )


@dataclass(frozen=True, slots=True)
class FilteredGroup:
    """A group after filtering: the items kept, and those dropped by reason."""

    kept: tuple[BufferItem, ...]
    dropped: dict[str, tuple[BufferItem, ...]]


GroupFilter = Callable[[tuple[BufferItem, ...]], FilteredGroup]


def keep_everything(group: tuple[BufferItem, ...]) -> FilteredGroup:
    return FilteredGroup(group, {})


def group_by_id(items: Sequence[BufferItem]) -> list[tuple[BufferItem, ...]]:
    """Adjacent items of the same group; an item without a group is one by itself."""
    groups: list[list[BufferItem]] = []
    for item in items:
        if groups and item.group_id and groups[-1][0].group_id == item.group_id:
            groups[-1].append(item)
        else:
            groups.append([item])
    return [tuple(group) for group in groups]
