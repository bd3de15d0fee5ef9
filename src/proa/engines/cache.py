"""The keys and values of all sequences being decoded, in blocks of a fixed number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BLOCK = 32
"""Tokens of a block. Every product of attention has a block's size, so that its bits do not depend on the longest
sequence; masked tokens add exact zeros."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device


class BlockCache:
    """Rows of keys and values, each starting with its own first token.

    Block `b` holds tokens `b * BLOCK` to `b * BLOCK + BLOCK - 1` of every row, in one piece of memory:

        block 0    row 0  p p p t      p: prompt, t: sampled
                   row 1  p p t .      .: not there yet, masked
        block 1    row 0  t t . .
                   row 1  . . . .

    Live rows are always the first ones. The tensors grow with the rows and with the longest of them.
    """

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._rows = 0
        self._blocks = 0
        self.clear()

    def clear(self) -> None:
        """Free the memory; there must be no rows."""
        self._rows = self._blocks = 0
        self._allocate(0, 0)

    def start_with(self, rows: int, columns: int) -> None:
        """Free the memory unless it has just this size; there must be no rows. Writing zeros to memory takes a tenth of
        the time that new memory takes."""
        if (rows, blocks_for(columns)) != (self._rows, self._blocks):
            self.clear()
            return
        self._keys.zero_()
        self._values.zero_()
        self._mask.fill_(float("-inf"))

    @property
    def tokens(self) -> int:
        """The number of tokens that the memory holds."""
        return self._rows * self._blocks * BLOCK

    def tokens_with(self, rows: int, columns: int) -> int:
        """The number of tokens that the memory would hold with room for these rows and columns."""
        return max(rows, self._rows) * max(blocks_for(columns), self._blocks) * BLOCK

    def reserve(self, rows: int, columns: int) -> None:
        """Make room for this many rows of this many tokens."""
        blocks = blocks_for(columns)
        if rows <= self._rows and blocks <= self._blocks:
            return
        old = (self._keys, self._values, self._mask)
        kept_rows, kept_blocks = self._rows, self._blocks
        self._allocate(max(rows, kept_rows), max(blocks, kept_blocks))
        if kept_rows and kept_blocks:
            self._keys[:, :kept_blocks, :kept_rows] = old[0]
            self._values[:, :kept_blocks, :kept_rows] = old[1]
            self._mask[:kept_rows, : kept_blocks * BLOCK] = old[2]

    def _allocate(self, rows: int, blocks: int) -> None:
        self._rows, self._blocks = rows, blocks
        shape = self._shape
        # Zeros: a masked NaN would still spoil a sum. The width comes last: a token is then written in one piece, and
        # the product with queries is a tenth slower than with tokens last, which is less than writing costs there.
        sizes = (shape.layers, blocks, rows, shape.heads, BLOCK, shape.width)
        dtype, device = shape.dtype, shape.device
        self._keys = torch.zeros(sizes, dtype=dtype, device=device)
        self._values = torch.zeros(sizes, dtype=dtype, device=device)
        self._mask = torch.full((rows, blocks * BLOCK), float("-inf"), dtype=dtype, device=device)
        rows_B, heads_H = torch.arange(rows, device=device), torch.arange(shape.heads, device=device)
        self._first_columns_B = rows_B * (blocks * BLOCK)
        self._first_places_BH = (rows_B[:, None] * shape.heads + heads_H) * BLOCK

    def put(self, row: int, keys_LHTW: torch.Tensor, values_LHTW: torch.Tensor, start: int = 0) -> None:
        """Write tokens of a row from `start` on; 0 replaces the row."""
        end = start + keys_LHTW.shape[2]
        if start == 0:
            self._mask[row] = float("-inf")
        self._mask[row, start:end] = 0.0
        for block in range(start // BLOCK, blocks_for(end)):
            first, last = max(start, block * BLOCK), min(end, (block + 1) * BLOCK)
            inside, outside = slice(first % BLOCK, last - block * BLOCK), slice(first - start, last - start)
            self._keys[:, block, row, :, inside] = keys_LHTW[:, :, outside]
            self._values[:, block, row, :, inside] = values_LHTW[:, :, outside]

    def take(self, row: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy of a row's first tokens, in the form of `put`."""
        blocks = blocks_for(length)
        keys_LbHKW, values_LbHKW = self._keys[:, :blocks, row], self._values[:, :blocks, row]
        keys_LHTW, values_LHTW = (
            one.transpose(1, 2).flatten(2, 3)[:, :, :length].clone(memory_format=torch.contiguous_format)
            for one in (keys_LbHKW, values_LbHKW)
        )
        return keys_LHTW, values_LHTW

    def move(self, source: int, target: int, length: int) -> None:
        """Move a row to another's place."""
        blocks = blocks_for(length)
        self._keys[:, :blocks, target] = self._keys[:, :blocks, source]
        self._values[:, :blocks, target] = self._values[:, :blocks, source]
        self._mask[target] = self._mask[source]

    def open(self, lengths: Sequence[int], positions_B: torch.Tensor) -> Columns:
        """The places of the next token of every row. The positions are the lengths of the live rows, then those of
        padding."""
        rows = len(positions_B)
        self._mask.view(-1).index_fill_(0, self._first_columns_B[:rows] + positions_B, 0.0)
        tokens_of_block = self._rows * self._shape.heads * BLOCK
        offsets_B = positions_B // BLOCK * tokens_of_block + positions_B % BLOCK
        places_BH = self._first_places_BH[:rows] + offsets_B[:, None]
        return Columns(places_BH.view(-1), blocks_for(max(lengths) + 1), (min(lengths) + 1) // BLOCK)

    def attend(
        self,
        layer: int,
        columns: Columns,
        queries_BHQW: torch.Tensor,
        keys_BHW: torch.Tensor,
        values_BHW: torch.Tensor,
    ) -> torch.Tensor:
        """Write one token's keys and values of every row, and attend to all of the row's tokens so far.

        `Q` is the number of query heads that share a key head; queries are already scaled. Returns `(B, H * Q * W)`.
        """
        rows, heads, shared, width = queries_BHQW.shape
        self._keys[layer].view(-1, width).index_copy_(0, columns.places, keys_BHW.reshape(-1, width))
        self._values[layer].view(-1, width).index_copy_(0, columns.places, values_BHW.reshape(-1, width))
        keys = self._keys[layer, : columns.used, :rows].flatten(1, 2).transpose(2, 3)
        values = self._values[layer, : columns.used, :rows].flatten(1, 2)
        queries = queries_BHQW.reshape(rows * heads, shared, width)
        scores = torch.stack([torch.bmm(queries, block) for block in keys.unbind()], 2)
        scores = scores.view(rows, heads * shared, -1)
        masked = slice(columns.full * BLOCK, columns.used * BLOCK)
        scores[..., masked].add_(self._mask[:rows, None, masked])
        weights = scores.softmax(-1).view(rows * heads, shared, columns.used, BLOCK).unbind(2)
        attended = torch.bmm(weights[0], values[0])
        for block in range(1, columns.used):
            attended.baddbmm_(weights[block], values[block])
        return attended.view(rows, -1)


@dataclass(frozen=True, slots=True)
class Columns:
    """The places where one token of every row is written, and the blocks that are attended to."""

    places: torch.Tensor
    """For every row and head, among all places for tokens of a layer."""
    used: int
    """The number of blocks up to the longest row's last."""
    full: int
    """How many of them have a token of every row in every place."""


def blocks_for(tokens: int) -> int:
    """The number of blocks that hold this many tokens.

    >>> blocks_for(1), blocks_for(32), blocks_for(33)
    (1, 1, 2)
    """
    return -(-tokens // BLOCK)
