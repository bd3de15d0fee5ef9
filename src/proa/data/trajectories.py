"""Trajectories: samples of one or several adjacent rows of a batch.

A sample is one trajectory. It has several rows if a turn's prompt did not begin with exactly the tokens before it, as
with a chat template that rewrites the past, or an agent that starts over. Its rows are adjacent and share a uid; it
ended in the last. Algorithms never see rows but trajectories, each as one row of `T` slots with its tokens in temporal
order. If an agent has several conversations, `turns` orders their turns.

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
"""The turn of empty slots, which come last."""


def split_samples(items: Sequence[BufferItem]) -> list[tuple[BufferItem, ...]]:
    """The rows of each sample, which are adjacent and share a uid. An item without a uid is a sample by itself."""
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
    """Maps the rows of a batch to trajectories and back.

    If every trajectory has one row, nothing is copied or changed.
    """

    def __init__(self, experience: Experience) -> None:
        uids = experience.uids or [""] * len(experience)
        self.rows = list(rows_by_uid(uids))
        """The rows of each trajectory; it ended in the last."""
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
        """Order the slots of each trajectory by their turns."""
        turns_NKA = turns_BA.cummax(1).values[self._rows_NK.clamp(min=0)]  # padding belongs to the turn before it
        turns_NT = turns_NKA.masked_fill((self._rows_NK < 0)[..., None], _NEVER).flatten(1)
        self._order_NT = turns_NT.argsort(dim=1, stable=True)
        self._back_NT = self._order_NT.argsort(1)

    def __len__(self) -> int:
        return len(self.rows)

    def join(self, values_BA: torch.Tensor) -> torch.Tensor:
        """(N, T): the values by trajectory; 0 or False in empty slots."""
        if not self.has_forks:
            return values_BA
        values_NKA = values_BA[self._rows_NK.clamp(min=0)]
        values_NT = values_NKA.masked_fill((self._rows_NK < 0)[..., None], 0).flatten(1)
        return values_NT if self._order_NT is None else values_NT.gather(1, self._order_NT)

    def split(self, values_NT: torch.Tensor) -> torch.Tensor:
        """(B, A): the values by row again."""
        if not self.has_forks:
            return values_NT
        if self._order_NT is not None:
            values_NT = values_NT.gather(1, self._back_NT)
        values_NKA = values_NT.view(*self._rows_NK.shape, -1)
        return values_NKA[self._number_B, self._place_B]

    def first(self, values_B: torch.Tensor) -> torch.Tensor:
        """(N,): the value of each trajectory's first row."""
        return values_B[self._rows_NK[:, 0]] if self.has_forks else values_B

    def last(self, values_B: torch.Tensor) -> torch.Tensor:
        """(N,): the value of each trajectory's last row."""
        if not self.has_forks:
            return values_B
        import torch

        return values_B[torch.tensor([rows[-1] for rows in self.rows], device=values_B.device)]

    def sum(self, values_B: torch.Tensor) -> torch.Tensor:
        """(N,): the sum over each trajectory's rows."""
        if not self.has_forks:
            return values_B
        return values_B.new_zeros(len(self)).index_add(0, self._number_B, values_B)

    def most(self, values_B: torch.Tensor) -> torch.Tensor:
        """(N,): the largest value of each trajectory's rows."""
        if not self.has_forks:
            return values_B
        return values_B[self._rows_NK.clamp(min=0)].masked_fill(self._rows_NK < 0, 0).amax(-1)
