"""The memory of a cache on a device: blocks that all versions of the weights share."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..decoder import Decoder
from .passes import BLOCK, Cache, make_cache

FOR_SCORING = 64
"""Blocks that sequences are never given, so that weights can be tried while everything is decoded."""
_LONG = 2048
"""Tokens of a sequence that there is room for in every row, unless the size of the cache is set."""


class BlockPool:
    """The blocks of a cache, and the streams of launches that read and write them."""

    def __init__(self, decoder: Decoder, tokens: int, context: int) -> None:
        self.device = decoder.device
        self.table_columns = -(-context // BLOCK) + 2  # the last block of a prompt and of the rest may be half empty
        self.blocks = blocks_for(tokens)
        self.for_scoring = list(range(self.blocks, self.blocks + FOR_SCORING))
        self._decoder, self._context = decoder, context
        self._free = list(range(self.blocks - 1, -1, -1))
        self._cache: Cache | None = None
        self.steps: torch.cuda.Stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
        self.passes: torch.cuda.Stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        """How many blocks are free."""
        return len(self._free)

    @property
    def tokens(self) -> int:
        """That there is room for."""
        return self.blocks * BLOCK

    @property
    def cache(self) -> Cache:
        """The memory itself, which is taken when it is first needed."""
        if self._cache is None:
            self._cache = make_cache(self._decoder, self.blocks + FOR_SCORING, self._context)
        return self._cache

    def take(self, count: int) -> list[int]:
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: Iterable[int]) -> None:
        self._free.extend(blocks)

    def release(self) -> None:
        """Give the memory back, if no block of it is used."""
        if len(self._free) == self.blocks:
            self._cache = None


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)


def default_tokens(decoder: Decoder, slots: int, context: int) -> int:
    """What every row needs for a sequence of 2,048 tokens, at most a quarter of the memory that is free."""
    shape = decoder.cache_shape
    token_bytes = 2 * shape.layers * shape.heads * shape.width * shape.dtype.itemsize
    free, _ = torch.cuda.mem_get_info(decoder.device)
    return max(BLOCK, min(slots * min(context, _LONG), free // 4 // token_bytes))
