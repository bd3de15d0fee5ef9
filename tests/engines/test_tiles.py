"""Tiles of products on a GPU: whatever the model and the GPU, they divide the depth and fit into shared memory."""

import pytest

from proa.engines.cuda.tiles import FEW_ROWS, MANY_ROWS, PROMPT_TOKENS, fitted

PRODUCTS = [
    (name, getattr(tiles, name), 2 if name == "mlp_in" else 1)
    for tiles in (FEW_ROWS, MANY_ROWS, PROMPT_TOKENS)
    for name in ("qkv", "attention_out", "mlp_in", "mlp_out", "head")
]
GPUS = {"H200": 232_448, "A100": 166_912, "RTX 4090": 101_376, "T4": 65_536}


@pytest.mark.parametrize("memory", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("depth", [16, 48, 896, 1024, 2560, 4864])
def test_they_fit(memory, itemsize, depth):
    for _, tile, weights in PRODUCTS:
        fits = fitted(tile, depth, itemsize, memory, weights=weights)
        assert fits.shared_memory(itemsize, weights) <= memory
        assert depth % (fits.depth * fits.parts) == 0
        assert fits.stages >= 2
        assert fits.depth >= 16


def test_on_the_gpu_they_were_measured_on_they_stay_as_they_are():
    for name, tile, weights in PRODUCTS:
        depth = {"attention_out": 2048, "mlp_out": 3072}.get(name, 1024)
        assert fitted(tile, depth, 2, GPUS["H200"], weights=weights) == tile
