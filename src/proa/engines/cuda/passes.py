"""A decode step and a pass over prompts as launches of kernels, over memory that never moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

from ..decoder import Decoder, Linear, Norm
from . import kernels
from .tiles import FEW_ROWS, MANY_ROWS, PROMPT_TOKENS, Tile, Tiles, fitted

BLOCK = 32
"""Tokens of a block of the cache."""
CHUNK = 64
"""Tokens of a sequence that a pass over prompts computes together."""
ROWS = 64
"""Rows come in multiples of this: one tile of a product."""
_TILE = 64
_SPAN = 384
"""Tokens of a row that one program of attention takes."""
_SPLITS = 4
"""The most programs that share a row's attention to one head; the last takes all that is left."""
_PART = 4096
"""Tokens of the vocabulary that one program weighs."""


def why_not(decoder: Decoder) -> str:
    """What about a model or its device the kernels do not know; empty if there is nothing."""
    layer = decoder.layers[0]
    depths = {linear.weight.shape[0] for linear in (layer.qkv, layer.attention_out, layer.mlp_out)}
    if torch.cuda.get_device_capability(decoder.device) < (8, 0):
        return "its kernels need compute capability 8.0"
    if decoder.inverse_frequencies is None or not decoder.gated or layer.attention_norm.bias is not None:
        return "its kernels know models with a rotary embedding, a gated MLP and root-mean-square norms"
    if decoder.activation is not torch.nn.functional.silu or layer.mlp_in.bias is not None:
        return "its kernels know the activation silu, without a bias"
    if decoder.width not in (16, 32, 64, 128, 256) or any(depth % 16 for depth in depths):
        return "its kernels know heads of 16, 32, 64, 128 or 256 numbers, and layers whose width 16 divides"
    return ""


@dataclass(frozen=True)
class Cache:
    """Blocks of keys and values, `(layers, blocks, heads, BLOCK, width)`, and the rotation of every position."""

    keys: torch.Tensor
    values: torch.Tensor
    cosines: torch.Tensor
    sines: torch.Tensor


def make_cache(decoder: Decoder, blocks: int, context: int) -> Cache:
    shape = decoder.cache_shape
    size = (shape.layers, blocks, shape.heads, BLOCK, shape.width)
    keys, values = (torch.zeros(size, dtype=shape.dtype, device=shape.device) for _ in range(2))
    assert decoder.inverse_frequencies is not None
    angles = torch.arange(context, device=shape.device)[:, None].float() * decoder.inverse_frequencies.float()
    cosines, sines = angles.cos() * decoder.rotation_scale, angles.sin() * decoder.rotation_scale
    return Cache(
        keys, values, torch.cat((cosines, cosines), -1).contiguous(), torch.cat((-sines, sines), -1).contiguous()
    )


class RowState:
    """What is known on the device of the rows that are decoded."""

    def __init__(self, count: int, table_columns: int, ends: Sequence[int], device: torch.device) -> None:
        self.count = count
        self.state = torch.zeros(count, kernels.FIELDS, dtype=torch.int64, device=device)
        self.state[:, kernels.POSITION.value] = -1
        self.table = torch.zeros(count, table_columns, dtype=torch.int32, device=device)
        self.forced = torch.zeros(count, table_columns * BLOCK, dtype=torch.int32, device=device)
        self.ends = torch.tensor(list(ends) or [-1], dtype=torch.int32, device=device)
        self.chosen = torch.zeros(count, dtype=torch.int32, device=device)
        self.log_probs = torch.zeros(count, dtype=torch.float32, device=device)
        self.reasons = torch.zeros(count, dtype=torch.int32, device=device)
        self.seen: torch.Tensor | None = None
        """Whether a row's sequence has a token, `(count, vocabulary)` of uint8; there once a request has a penalty."""


class _Pass:
    """Memory for the rows of a pass, and what all passes do."""

    def __init__(self, decoder: Decoder, cache: Cache, rows: int, tiles: Tiles, table_columns: int) -> None:
        self._decoder, self._cache, self._rows = decoder, cache, rows
        device, dtype = decoder.device, decoder.embeddings.dtype
        hidden = decoder.embeddings.shape[1]
        heads = (decoder.query_heads + 2 * decoder.key_heads) * decoder.width
        inner = decoder.layers[0].mlp_out.weight.shape[0]
        attended = decoder.query_heads * decoder.width
        memory = _shared_memory(device)
        itemsize = dtype.itemsize
        self._tiles = Tiles(
            fitted(tiles.qkv, hidden, itemsize, memory),
            fitted(tiles.attention_out, attended, itemsize, memory),
            fitted(tiles.mlp_in, hidden, itemsize, memory, weights=2),
            fitted(tiles.mlp_out, inner, itemsize, memory),
            fitted(tiles.head, hidden, itemsize, memory),
        )
        parts = max(self._tiles.attention_out.parts, self._tiles.mlp_out.parts)
        self.residual = torch.empty(rows, hidden, dtype=dtype, device=device)
        self.normed = torch.empty(rows, hidden, dtype=dtype, device=device)
        self._qkv = torch.empty(rows, heads, dtype=dtype, device=device)
        self._attended = torch.zeros(rows, attended, dtype=dtype, device=device)
        self._inner = torch.empty(rows, inner, dtype=dtype, device=device)
        self._parts = torch.empty(parts, rows, hidden, dtype=torch.float32, device=device)
        self._columns = table_columns
        self._precision = "ieee" if dtype == torch.float32 else "tf32"
        self._padded = triton.next_power_of_2(hidden)
        self._norm_warps = 4 if hidden <= 2048 else 8

    def _embed(self, tokens: torch.Tensor, stride: int) -> None:
        decoder = self._decoder
        norm = decoder.layers[0].attention_norm
        kernels.embed[(self._rows,)](
            tokens, stride, decoder.embeddings, norm.weight, self.residual, self.normed, norm.epsilon,
            WIDTH=self.residual.shape[1], PADDED=self._padded, num_warps=self._norm_warps,
        )  # fmt: skip

    def _product(self, inputs: torch.Tensor, linear: Linear, out: torch.Tensor, tile: Tile, *, biased: bool) -> None:
        depth, columns = linear.weight.shape
        bias = linear.bias if biased and linear.bias is not None else inputs
        grid = (triton.cdiv(columns, tile.columns), triton.cdiv(self._rows, tile.rows), tile.parts)
        kernels.product[grid](
            inputs, linear.weight, bias, out, self._rows, columns, depth,
            M=tile.rows, N=tile.columns, K=tile.depth, PARTS=tile.parts, BIASED=biased and linear.bias is not None,
            PRECISION=self._precision, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _layer(self, number: int) -> None:
        """From the normed residual to the normed residual after the layer."""
        layer, tiles = self._decoder.layers[number], self._tiles
        self._product(self.normed, layer.qkv, self._qkv, tiles.qkv, biased=True)
        self._attend(number)
        self._product(self._attended, layer.attention_out, self._parts, tiles.attention_out, biased=False)
        self._add(layer.attention_out, tiles.attention_out, layer.mlp_norm)
        depth, columns = layer.mlp_in.weight.shape
        tile = tiles.mlp_in
        kernels.gated_product[(triton.cdiv(columns // 2, tile.columns), triton.cdiv(self._rows, tile.rows))](
            self.normed, layer.mlp_in.weight, self._inner, self._rows, columns // 2, depth,
            M=tile.rows, N=tile.columns, K=tile.depth, PRECISION=self._precision, num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip
        self._product(self._inner, layer.mlp_out, self._parts, tiles.mlp_out, biased=False)
        layers = self._decoder.layers
        following = layers[number + 1].attention_norm if number + 1 < len(layers) else self._decoder.final_norm
        self._add(layer.mlp_out, tiles.mlp_out, following)

    def _add(self, linear: Linear, tile: Tile, norm: Norm) -> None:
        kernels.add_norm[(self._rows,)](
            self._parts, linear.bias if linear.bias is not None else self._parts, norm.weight, self.residual,
            self.normed, norm.epsilon, self._rows, PARTS=tile.parts, WIDTH=self.residual.shape[1], PADDED=self._padded,
            BIASED=linear.bias is not None, num_warps=self._norm_warps,
        )  # fmt: skip

    def _heads(self, number: int) -> dict[str, Any]:
        decoder = self._decoder
        layer = decoder.layers[number]
        return {
            "HEADS": decoder.key_heads, "SHARED": decoder.query_heads // decoder.key_heads, "WIDTH": decoder.width,
            "BLOCK": BLOCK, "NORMED": layer.query_norm is not None,
        }  # fmt: skip

    def _norms(self, number: int) -> tuple[torch.Tensor, torch.Tensor, float]:
        layer = self._decoder.layers[number]
        if layer.query_norm is None or layer.key_norm is None:
            return self.normed, self.normed, 0.0
        return layer.query_norm.weight, layer.key_norm.weight, layer.query_norm.epsilon

    def _attend(self, number: int) -> None:
        raise NotImplementedError


def _shared_memory(device: torch.device) -> int:
    """Bytes that one program may have on this GPU."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])


@dataclass(frozen=True)
class _Weighed:
    """Logits, and of each part of the vocabulary the highest one and the sum of weights relative to that."""

    logits: torch.Tensor
    peaks: torch.Tensor
    sums: torch.Tensor


class StepPass(_Pass):
    """One token of every row, from its state to its next token."""

    def __init__(self, decoder: Decoder, cache: Cache, rows: RowState) -> None:
        tiles = FEW_ROWS if rows.count <= ROWS else MANY_ROWS
        super().__init__(decoder, cache, rows.count, tiles, rows.table.shape[1])
        self._state = rows
        vocabulary = decoder.embeddings.shape[0]
        self._vocabulary = vocabulary
        self._vocabulary_parts = triton.cdiv(vocabulary, _PART)
        device = decoder.device
        self._policy = self._memory_to_weigh()
        self._penalised: _Weighed | None = None
        self._levels = torch.empty(rows.count, dtype=torch.int64, device=device)
        self._kept = torch.empty(rows.count, self._vocabulary_parts, device=device)
        parts = (rows.count, decoder.key_heads, _SPLITS, decoder.query_heads // decoder.key_heads)
        self._mixtures = torch.empty(*parts, decoder.width, device=device)
        self._sums_of_splits = torch.empty(*parts, 2, device=device)
        self._arrived = torch.zeros(rows.count, decoder.key_heads, dtype=torch.int32, device=device)

    def _memory_to_weigh(self) -> _Weighed:
        rows, parts, device = self._state.count, self._vocabulary_parts, self._decoder.device
        logits = torch.empty(rows, self._vocabulary, dtype=torch.float32, device=device)
        return _Weighed(logits, torch.empty(rows, parts, device=device), torch.empty(rows, parts, device=device))

    def allow_penalties(self) -> None:
        """Have memory for `launch_penalised`: the logits that rows sample from, beside the policy's."""
        self._penalised = self._penalised or self._memory_to_weigh()
        if self._state.seen is None:
            size = (self._state.count, self._vocabulary)
            self._state.seen = torch.zeros(size, dtype=torch.uint8, device=self._decoder.device)

    def launch(self) -> None:
        """A step of rows of which none has a repetition penalty."""
        self._weigh_policy()
        self._choose(self._policy)

    def launch_penalised(self) -> None:
        """A step of rows of which some have a repetition penalty; the others get the same bits as without."""
        self._weigh_policy()
        assert self._penalised is not None
        kernels.penalise[(self._rows, self._vocabulary_parts)](
            self._policy.logits, self._state.state, self._state.seen, self._penalised.logits, self._vocabulary,
            SIZE=_PART, num_warps=8,
        )  # fmt: skip
        self._weigh(self._penalised)
        self._choose(self._penalised)

    def _weigh_policy(self) -> None:
        self._embed(self._state.state, kernels.FIELDS)
        for number in range(len(self._decoder.layers)):
            self._layer(number)
        self._logits()
        self._weigh(self._policy)

    def _attend(self, number: int) -> None:
        cache, decoder, rows = self._cache, self._decoder, self._state
        query, key, epsilon = self._norms(number)
        shared = decoder.query_heads // decoder.key_heads
        kernels.attend[(self._rows, decoder.key_heads, _SPLITS)](
            self._qkv, self._attended, cache.keys[number], cache.values[number], rows.state, rows.table, query, key,
            cache.cosines, cache.sines, self._mixtures, self._sums_of_splits, self._arrived,
            decoder.layers[number].attention_scale, epsilon, self._columns,
            PADDED=max(16, triton.next_power_of_2(shared)), SPAN=_SPAN, SPLITS=_SPLITS, PRECISION=self._precision,
            num_warps=1 if decoder.width <= 128 else 2, num_stages=3, **self._heads(number),
        )  # fmt: skip

    def _logits(self) -> None:
        tile = self._tiles.head
        depth = self._decoder.embeddings.shape[1]
        kernels.product[(triton.cdiv(self._vocabulary, tile.columns), triton.cdiv(self._rows, tile.rows), 1)](
            self.normed, self._decoder.head.weight, self.normed, self._policy.logits, self._rows, self._vocabulary,
            depth, M=tile.rows, N=tile.columns, K=tile.depth, PARTS=1, BIASED=False, PRECISION=self._precision,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _weigh(self, weighed: _Weighed) -> None:
        parts = self._vocabulary_parts
        kernels.weigh[(self._rows, parts)](
            weighed.logits, self._state.state, weighed.peaks, weighed.sums, self._vocabulary, parts, SIZE=_PART,
            num_warps=8,
        )  # fmt: skip

    def _choose(self, sampled: _Weighed) -> None:
        rows, policy, parts = self._state, self._policy, self._vocabulary_parts
        sizes = {"PADDED_PARTS": triton.next_power_of_2(parts), "SIZE": _PART, "num_warps": 8}
        kernels.restrict[(self._rows,)](
            sampled.logits, rows.state, sampled.peaks, self._levels, self._kept, self._vocabulary, parts, **sizes
        )
        kernels.choose[(self._rows,)](
            sampled.logits, sampled.peaks, sampled.sums, policy.logits, policy.peaks, policy.sums, rows.state,
            rows.forced, rows.forced.shape[1], rows.ends, len(rows.ends), self._levels, self._kept, rows.chosen,
            rows.log_probs, rows.reasons, self._vocabulary, parts,
            ENDS=triton.next_power_of_2(len(rows.ends)), **sizes,
        )  # fmt: skip


class PromptPass(_Pass):
    """Chunks of prompts, of as many sequences as there are, into the cache."""

    def __init__(self, decoder: Decoder, cache: Cache, chunks: int, table_columns: int) -> None:
        super().__init__(decoder, cache, chunks * CHUNK, PROMPT_TOKENS, table_columns)
        device = decoder.device
        self.tokens = torch.zeros(chunks * CHUNK, dtype=torch.int64, device=device)
        self.chunks = torch.zeros(chunks, 3, dtype=torch.int32, device=device)
        """Of each: the position of its first token, how many it has, and how many tokens the sequence shares."""
        self.table = torch.zeros(chunks, table_columns, dtype=torch.int32, device=device)

    def launch(self) -> None:
        self._embed(self.tokens, 1)
        for number in range(len(self._decoder.layers)):
            self._layer(number)  # of the last one only keys and values are needed

    def _attend(self, number: int) -> None:
        cache, decoder = self._cache, self._decoder
        query, key, epsilon = self._norms(number)
        shared = decoder.query_heads // decoder.key_heads
        keys, values, heads = cache.keys[number], cache.values[number], self._heads(number)
        kernels.write_prompt[(self._rows, decoder.key_heads)](
            self._qkv, keys, values, self.chunks, self.table, query, key, cache.cosines, cache.sines, epsilon,
            self._columns, PADDED=max(2, triton.next_power_of_2(shared)), CHUNK=CHUNK, num_warps=1, **heads,
        )  # fmt: skip
        heads.pop("NORMED")
        kernels.attend_prompt[(len(self.chunks), decoder.query_heads)](
            self._qkv, self._attended, keys, values, self.chunks, self.table, decoder.layers[number].attention_scale,
            self._columns, CHUNK=CHUNK, TILE=_TILE, PRECISION=self._precision, num_warps=4, num_stages=2, **heads,
        )  # fmt: skip
