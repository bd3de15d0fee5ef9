"""The keys and values of all sequences under decoding, in columns that all rows write at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_SLACK = 128
"""Columns beyond the longest sequence: that many steps lie between two moves of the whole cache."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device


class ColumnCache:
    """A preallocated cache whose rows come and go, written one column per step.

    Keys already carry their positions, so a sequence may lie in any columns. All rows that are decoding
    write the same column, `now`, and a prompt that enters is put into the columns just before it:

        row 0   p p p t t t          p: prompt, t: sampled
        row 1   . p p t t t          .: before the row's start, masked
        row 2   . . . . p p          has just entered; the next step writes column 6 of all rows

    So a step's write is one slice, not a scatter. Live rows are always the first ones: a row that ends
    is overwritten by one from the back. When the columns are used up, the live ones move to the front.
    """

    def __init__(self, shape: CacheShape, *, rows: int, longest_prompt: int, new_tokens: int, refills: bool) -> None:
        columns = longest_prompt + new_tokens + (_SLACK if refills else 0)
        # Columns come last for keys and before the width for values: both products then run over memory
        # in order. Zeros, for a masked NaN would still spoil a sum.
        sizes = (shape.layers, rows, shape.heads)
        self._keys = torch.zeros((*sizes, shape.width, columns), dtype=shape.dtype, device=shape.device)
        self._values = torch.zeros((*sizes, columns, shape.width), dtype=shape.dtype, device=shape.device)
        self._flat_keys = self._keys.flatten(1, 2)
        self._flat_values = self._values.flatten(1, 2)
        self._shape = shape
        self._rows = rows
        self._columns = columns
        self._longest_prompt = longest_prompt
        self._now = longest_prompt
        self._starts: list[int] = []
        self._first = 0
        self._starts_B1: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def free(self) -> int:
        return self._rows - len(self._starts)

    def enter(self, keys_LHTW: torch.Tensor, values_LHTW: torch.Tensor, count: int) -> None:
        """Add `count` rows that begin with the same prompt."""
        if not self._starts:
            self._now = self._longest_prompt
        live = len(self._starts)
        start = self._now - keys_LHTW.shape[2]
        self._keys[:, live : live + count, :, :, start : self._now] = keys_LHTW.transpose(2, 3)[:, None]
        self._values[:, live : live + count, :, start : self._now] = values_LHTW[:, None]
        self._set_starts(self._starts + [start] * count)

    def keep(self, order: Sequence[int]) -> None:
        """Keep the rows of `order`, in that order; each stays in place or moves to a lower one."""
        columns = slice(self._first, self._now)
        moves = [(row, source) for row, source in enumerate(order) if row != source]
        for row, source in moves:
            self._keys[:, row, :, :, columns] = self._keys[:, source, :, :, columns]
            self._values[:, row, :, columns] = self._values[:, source, :, columns]
        self._set_starts([self._starts[source] for source in order])

    def open_column(self) -> None:
        """Make ready for the next token of every row."""
        if self._now == self._columns:
            self._move_to_front()
        self._now += 1
        self._bias = self._start_bias()

    def attend(
        self, layer: int, queries_BHQW: torch.Tensor, keys_BHW: torch.Tensor, values_BHW: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write one token's keys and values of every row, and attend to all of the row's so far.

        `Q` is the number of query heads that share a key head. Returns `(B, H * Q * W)`.
        """
        live, heads, _, width = queries_BHQW.shape
        self._keys[layer, :live, :, :, self._now - 1] = keys_BHW
        self._values[layer, :live, :, self._now - 1] = values_BHW
        keys = self._flat_keys[layer, : live * heads, :, self._first : self._now]
        values = self._flat_values[layer, : live * heads, self._first : self._now]
        queries = queries_BHQW.reshape(live * heads, -1, width)
        if self._bias is None:
            scores = torch.baddbmm(keys.new_empty(()), queries, keys, beta=0, alpha=scale)
        else:
            scores = torch.baddbmm(self._bias, queries, keys, alpha=scale)
        return torch.bmm(scores.softmax(-1), values).view(live, -1)

    def _set_starts(self, starts: list[int]) -> None:
        self._starts = starts
        self._first = min(starts, default=0)
        ragged = any(start != self._first for start in starts)
        self._starts_B1 = torch.tensor(starts, device=self._shape.device)[:, None] if ragged else None

    def _start_bias(self) -> torch.Tensor | None:
        """Minus infinity where a row has not begun, as `(B * H, 1, columns)`; None if all begin together."""
        if self._starts_B1 is None:
            return None
        columns_T = torch.arange(self._first, self._now, device=self._shape.device)
        bias_BT = torch.zeros(len(self), len(columns_T), dtype=self._shape.dtype, device=self._shape.device)
        bias_BT.masked_fill_(columns_T < self._starts_B1, float("-inf"))
        return bias_BT.repeat_interleave(self._shape.heads, 0)[:, None]

    def _move_to_front(self) -> None:
        """Shift the live columns back, leaving room for the longest prompt before `now`."""
        shift = min(self._first, self._now - self._longest_prompt)
        live, columns = len(self), slice(shift, self._now)
        self._keys[:, :live, :, :, : self._now - shift] = self._keys[:, :live, :, :, columns].clone()
        self._values[:, :live, :, : self._now - shift] = self._values[:, :live, :, columns].clone()
        self._now -= shift
        self._set_starts([start - shift for start in self._starts])
