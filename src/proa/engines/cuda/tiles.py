"""How products are cut up for a GPU: sizes that were fastest on an H200, made smaller where a GPU or a model needs it.

They are the same for any number of rows, because the bits of a row depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, columns and depth of a piece of a product; its depth may also be cut into parts that are added up later."""

    rows: int
    columns: int
    depth: int
    parts: int = 1
    warps: int = 4
    stages: int = 4
    """How many pieces are in shared memory at once: the next ones are loaded while one is computed."""

    def shared_memory(self, itemsize: int, weights: int = 1) -> int:
        """Bytes that a program needs for a product with so many weights."""
        return self.stages * self.depth * (self.rows + weights * self.columns) * itemsize


@dataclass(frozen=True, slots=True)
class Tiles:
    """Of each product of a layer, and of the output head."""

    qkv: Tile
    attention_out: Tile
    mlp_in: Tile
    mlp_out: Tile
    head: Tile


FEW_ROWS = Tiles(
    qkv=Tile(64, 32, 128), attention_out=Tile(64, 32, 128, parts=4, stages=3), mlp_in=Tile(64, 32, 128),
    mlp_out=Tile(64, 32, 128, parts=4, stages=3), head=Tile(64, 64, 64),
)  # fmt: skip
"""Of an engine with up to 64 rows: the time goes into reading weights, so many programs read them."""
MANY_ROWS = Tiles(
    qkv=Tile(128, 64, 64, warps=8, stages=5), attention_out=Tile(64, 64, 128, parts=2),
    mlp_in=Tile(128, 64, 64, warps=8), mlp_out=Tile(64, 64, 128, parts=2), head=Tile(128, 64, 64, warps=8, stages=3),
)  # fmt: skip
PROMPT_TOKENS = Tiles(
    qkv=Tile(128, 128, 64, warps=8, stages=3), attention_out=Tile(128, 64, 64, warps=8),
    mlp_in=Tile(128, 64, 64, warps=8, stages=3), mlp_out=Tile(128, 64, 64, warps=8), head=Tile(64, 128, 64),
)  # fmt: skip


def fitted(tile: Tile, depth: int, itemsize: int, shared_memory: int, *, weights: int = 1) -> Tile:
    """The tile for a product of that depth, which its pieces divide, on a GPU with so much shared memory. Numbers of 4
    bytes come in pieces of half the depth.

    >>> fitted(Tile(128, 64, 64, stages=5), 896, itemsize=2, shared_memory=232_448).depth
    64
    >>> fitted(Tile(128, 64, 64, stages=5), 896, itemsize=2, shared_memory=101_376).stages
    4
    """
    largest, stages = (tile.depth // 2, min(tile.stages, 3)) if itemsize == 4 else (tile.depth, tile.stages)
    piece = next(size for size in (128, 64, 32, 16) if size <= largest and depth % size == 0)
    parts = next(parts for parts in (4, 2, 1) if parts <= tile.parts and depth % (parts * piece) == 0)
    tile = replace(tile, depth=piece, parts=parts, stages=stages)
    while tile.shared_memory(itemsize, weights) > shared_memory:
        if tile.stages > 2:
            tile = replace(tile, stages=tile.stages - 1)
        elif tile.depth > 16:
            tile = replace(tile, depth=tile.depth // 2, stages=stages)
        else:
            break  # the compiler will say what is wrong
    return tile
