"""Trajectories: samples of one row or several, side by side in a batch.

A sample is one trajectory. It has several rows where a turn's prompt did not begin with exactly the tokens before it: a
chat template that rewrites the past, or an agent that starts over. Its rows stand next to each other and have one uid;
the last is the one that it ended in. Algorithms never see rows: they are given trajectories, each as one row of `T`
slots, its tokens in the order of time. Where an agent has several conversations, `turns` says which turn came when.

    rows (B, A)      a a .      trajectories (N, T)      a a . b b b
                     b b b                               c c . . . .
                     c c .
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .experience import BufferItem, Experience

_NEVER = 2**30
"""The turn of slots that no row has: after all others."""


def split_samples(items: Sequence[BufferItem]) -> list[tuple[BufferItem, ...]]:
    """The rows of each sample: neighbours with one uid. An item without a uid is a sample by itself."""
    return [tuple(items[row] for row in rows) for rows in rows_by_uid([item.uid for item in items])]


def count_samples(items: Sequence[BufferItem]) -> int:
    return sum(1 for _ in rows_by_uid([item.uid for item in items]))


def rows_by_uid(uids: Sequence[str]) -> Iterator[list[int]]:
    """
    >>> list(rows_by_uid(["0/0", "0/0", "0/1", "", ""]))
    [[0, 1], [2], [3], [4]]
    """
    for _, rows in groupby(range(len(uids)), key=lambda row: uids[row] or row):
        yield list(rows)


class Trajectories:
    """Which rows of a batch are one trajectory, to lay values out by trajectory and back.

    Where every trajectory has one row, nothing is copied or changed.
    """

    def __init__(self, experience: Experience) -> None:
        uids = experience.uids or [""] * len(experience)
        self.rows = list(rows_by_uid(uids))
        """Of each trajectory; the last is the one that it ended in."""
        self.has_forks = len(self.rows) < len(experience)
        self._order_NT: torch.Tensor | None = None
        if self.has_forks:
            self._index(experience.sequences.device)
            if experience.turns is not None:
                self._sort_by_time(experience.turns)

    def _index(self, device: torch.device) -> None:
        import torch  # slow to import, and most of this package works without it

        most = max(map(len, self.rows))
        padded = [rows + [-1] * (most - len(rows)) for rows in self.rows]
        self._rows_NK = torch.tensor(padded, device=device)
        places = [(number, place) for number, rows in enumerate(self.rows) for place in range(len(rows))]
        self._number_B, self._place_B = torch.tensor(places, device=device).unbind(1)

    def _sort_by_time(self, turns_BA: torch.Tensor) -> None:
        """Have the slots of each trajectory in the order of the turns that they belong to."""
        turns_NKA = turns_BA.cummax(1).values[self._rows_NK.clamp(min=0)]  # padding belongs to the turn before it
        turns_NT = turns_NKA.masked_fill((self._rows_NK < 0)[..., None], _NEVER).flatten(1)
        self._order_NT = turns_NT.argsort(dim=1, stable=True)
        self._back_NT = self._order_NT.argsort(1)

    def __len__(self) -> int:
        return len(self.rows)

    def join(self, values_BA: torch.Tensor) -> torch.Tensor:
        """(N, T): 0 or False where a trajectory has fewer rows."""
        if not self.has_forks:
            return values_BA
        values_NKA = values_BA[self._rows_NK.clamp(min=0)]
        values_NT = values_NKA.masked_fill((self._rows_NK < 0)[..., None], 0).flatten(1)
        return values_NT if self._order_NT is None else values_NT.gather(1, self._order_NT)

    def split(self, values_NT: torch.Tensor) -> torch.Tensor:
        """(B, A): the rows again."""
        if not self.has_forks:
            return values_NT
        if self._order_NT is not None:
            values_NT = values_NT.gather(1, self._back_NT)
        values_NKA = values_NT.view(*self._rows_NK.shape, -1)
        return values_NKA[self._number_B, self._place_B]

    def first(self, values_B: torch.Tensor) -> torch.Tensor:
        """(N,): of what all rows of a trajectory have alike."""
        return values_B[self._rows_NK[:, 0]] if self.has_forks else values_B

    def last(self, values_B: torch.Tensor) -> torch.Tensor:
        """(N,): of the row in which each trajectory ended."""
        if not self.has_forks:
            return values_B
        import torch

        return values_B[torch.tensor([rows[-1] for rows in self.rows], device=values_B.device)]

    def sum(self, values_B: torch.Tensor) -> torch.Tensor:
        """(N,): over the rows of each trajectory."""
        if not self.has_forks:
            return values_B
        return values_B.new_zeros(len(self)).index_add(0, self._number_B, values_B)

    def most(self, values_B: torch.Tensor) -> torch.Tensor:
        """(N,): the largest of the rows of each trajectory."""
        if not self.has_forks:
            return values_B
        return values_B[self._rows_NK.clamp(min=0)].masked_fill(self._rows_NK < 0, 0).amax(-1)
