"""A decoder-only transformer as plain tensors: prompts in one pass, then one token of every row at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from .cache import BlockCache, CacheShape, Columns
from .packed_weight import PackedWeight
from .product_shapes import ProductShapes


@dataclass(frozen=True, slots=True)
class Linear:
    """`inputs @ weight + bias`; the weight is `(inputs, outputs)`, a fifth faster on CPU than the transpose."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    packed: PackedWeight | None = None
    """The same weight for large products on a CPU."""

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            return self.packed.product(inputs, self.bias)
        outputs = inputs @ self.weight
        return outputs if self.bias is None else outputs.add_(self.bias)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> None:
        """Add the product to the residual, in place."""
        if self.packed is not None:
            residual.add_(self.packed.product(inputs, self.bias))
            return
        residual.view(-1, residual.shape[-1]).addmm_(inputs.view(-1, inputs.shape[-1]), self.weight)
        if self.bias is not None:
            residual.add_(self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm, or without a bias a root-mean-square norm, over the last dimension."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    epsilon: float

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return functional.rms_norm(inputs, self.weight.shape, self.weight, self.epsilon)
        return functional.layer_norm(inputs, self.weight.shape, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. `qkv` computes queries, keys and values at once, `mlp_in` the gate (if any) and its input."""

    attention_norm: Norm
    qkv: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    attention_out: Linear
    attention_scale: float
    mlp_norm: Norm
    mlp_in: Linear
    mlp_out: Linear


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of each position, `(positions, width)`; the sines of the first half are negated."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def at(self, positions: torch.Tensor) -> Rotation:
        return Rotation(self.cosines[positions].unsqueeze(-2), self.sines[positions].unsqueeze(-2))

    def apply_(self, heads: torch.Tensor) -> None:
        """Rotate `(..., heads, width)` in place: each element pairs with the one half a width away."""
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        heads.mul_(self.cosines).addcmul_(swapped, self.sines)


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The result of a pass over tokens: keys and values `(layers, heads, tokens, width)`, and the logits after the last
    token."""

    keys: torch.Tensor
    values: torch.Tensor
    logits: torch.Tensor

    def after(self, earlier: Prefilled | None) -> Prefilled:
        """The result with that of the tokens before."""
        if earlier is None:
            return self
        keys, values = torch.cat((earlier.keys, self.keys), 2), torch.cat((earlier.values, self.values), 2)
        return Prefilled(keys, values, self.logits)


@dataclass(frozen=True)
class Decoder:
    """The weights and the shape of a model, and its two passes.

    A rotary model has `inverse_frequencies`, a model with a learned vector for each position `position_embeddings`.
    """

    embeddings: torch.Tensor
    position_embeddings: torch.Tensor | None
    inverse_frequencies: torch.Tensor | None
    rotation_scale: float
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: Linear
    query_heads: int
    key_heads: int
    width: int
    activation: Callable[[torch.Tensor], torch.Tensor]
    gated: bool

    @property
    def device(self) -> torch.device:
        return self.embeddings.device

    def weights_changed(self) -> None:
        """Must be called after weights were written, as some have a second copy in memory."""
        linears = [self.head]
        for layer in self.layers:
            linears += [layer.qkv, layer.attention_out, layer.mlp_in, layer.mlp_out]
        for linear in linears:
            if linear.packed is not None:
                linear.packed.forget()

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape(len(self.layers), self.key_heads, self.width, self.embeddings.dtype, self.device)

    def rotation(self, length: int) -> Rotation | None:
        """The table of all positions below `length`, made once per call of the engine."""
        if self.inverse_frequencies is None:
            return None
        angles = torch.arange(length, device=self.device)[:, None].float() * self.inverse_frequencies.float()
        cosines, sines = angles.cos() * self.rotation_scale, angles.sin() * self.rotation_scale
        dtype = self.embeddings.dtype
        return Rotation(torch.cat((cosines, cosines), -1).to(dtype), torch.cat((-sines, sines), -1).to(dtype))

    def prefill(
        self, prompts: Sequence[Sequence[int]], rotation: Rotation | None, shapes: ProductShapes
    ) -> list[Prefilled]:
        """One pass over prompts of the same padded length. Padding is on the right, where no real token attends; a
        prompt's bits depend on its own length alone."""
        padded = shapes.tokens_for(max(map(len, prompts)))
        tokens_PT = torch.tensor([[*prompt, *[0] * (padded - len(prompt))] for prompt in prompts], device=self.device)
        keys_LPHTW, values_LPHTW, hidden_PTD = self._pass(tokens_PT, 0, rotation, None)
        rows_P = torch.arange(len(prompts), device=self.device)
        last_P = torch.tensor([len(prompt) - 1 for prompt in prompts], device=self.device)
        logits_PV = self._logits_of(hidden_PTD[rows_P, last_P], shapes)
        return [
            Prefilled(keys_LPHTW[:, row, :, : len(prompt)], values_LPHTW[:, row, :, : len(prompt)], logits_V)
            for row, (prompt, logits_V) in enumerate(zip(prompts, logits_PV, strict=True))
        ]

    def prefill_after(
        self, past: Prefilled, tokens: Sequence[int], rotation: Rotation | None, shapes: ProductShapes
    ) -> Prefilled:
        """One pass over tokens that follow others of the same sequence."""
        padded, start = shapes.tokens_for(len(tokens)), past.keys.shape[2]
        tokens_1T = torch.tensor([[*tokens, *[0] * (padded - len(tokens))]], device=self.device)
        keys_L1HTW, values_L1HTW, hidden_1TD = self._pass(tokens_1T, start, rotation, past)
        logits_V = self._logits_of(hidden_1TD[:, len(tokens) - 1], shapes)[0]
        return Prefilled(keys_L1HTW[:, 0, :, : len(tokens)], values_L1HTW[:, 0, :, : len(tokens)], logits_V)

    def _pass(
        self, tokens_PT: torch.Tensor, start: int, rotation: Rotation | None, past: Prefilled | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys and values of every layer `(L, P, H, T, W)`, and the hidden state after the last one."""
        length = tokens_PT.shape[1]
        positions_T = torch.arange(start, start + length, device=self.device)
        hidden_PTD = self._embed(tokens_PT, positions_T)
        turned = None if rotation is None else rotation.at(positions_T)
        mask_TS = None
        if past is not None:
            mask_TS = torch.arange(start + length, device=self.device) <= positions_T[:, None]
        keys, values = [], []
        for number, layer in enumerate(self.layers):
            queries_PTHW, keys_PTHW, values_PTHW = self._heads(layer, hidden_PTD, turned)
            keys.append(keys_PTHW.transpose(1, 2))
            values.append(values_PTHW.transpose(1, 2))
            seen_keys, seen_values = keys[-1], values[-1]
            if past is not None:
                seen_keys = torch.cat((past.keys[number, None], seen_keys), 2)
                seen_values = torch.cat((past.values[number, None], seen_values), 2)
            attended = functional.scaled_dot_product_attention(
                queries_PTHW.transpose(1, 2),
                seen_keys,
                seen_values,
                attn_mask=mask_TS,
                is_causal=mask_TS is None,
                scale=layer.attention_scale,
                enable_gqa=self.query_heads != self.key_heads,
            )
            layer.attention_out.add_to(hidden_PTD, attended.transpose(1, 2).flatten(2))
            self._add_mlp(layer, hidden_PTD)
        return torch.stack(keys), torch.stack(values), hidden_PTD

    def step(
        self,
        tokens_B: torch.Tensor,
        positions_B: torch.Tensor,
        rotation: Rotation | None,
        cache: BlockCache,
        columns: Columns,
    ) -> torch.Tensor:
        """Logits after one more token of every row."""
        hidden_BD = self._embed(tokens_B, positions_B)
        turned = None if rotation is None else rotation.at(positions_B)
        grouped = (len(tokens_B), self.key_heads, -1, self.width)
        for number, layer in enumerate(self.layers):
            queries_BHW, keys_BHW, values_BHW = self._heads(layer, hidden_BD, turned)
            queries_BHQW = (queries_BHW * layer.attention_scale).view(grouped)
            layer.attention_out.add_to(hidden_BD, cache.attend(number, columns, queries_BHQW, keys_BHW, values_BHW))
            self._add_mlp(layer, hidden_BD)
        return self._logits(hidden_BD)

    def _logits_of(self, hidden_PD: torch.Tensor, shapes: ProductShapes) -> torch.Tensor:
        """The logits of some rows, computed with the number of rows of a step."""
        count = len(hidden_PD)
        padded_PD = functional.pad(hidden_PD, (0, 0, 0, shapes.rows_for(count) - count))
        return self._logits(padded_PD)[:count]

    def _embed(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = functional.embedding(tokens, self.embeddings)
        if self.position_embeddings is None:
            return hidden
        known = positions.clamp(max=len(self.position_embeddings) - 1)  # padding may lie beyond the context
        return hidden.add_(self.position_embeddings[known])

    def _heads(
        self, layer: Layer, hidden: torch.Tensor, turned: Rotation | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, each `(..., heads, width)`, as views of one product."""
        heads = layer.qkv(layer.attention_norm(hidden)).view(*hidden.shape[:-1], -1, self.width)
        queries, keys, values = heads.split_with_sizes((self.query_heads, self.key_heads, self.key_heads), -2)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries.copy_(layer.query_norm(queries))
            keys.copy_(layer.key_norm(keys))
        if turned is not None:
            turned.apply_(heads[..., : self.query_heads + self.key_heads, :])
        return queries, keys, values

    def _add_mlp(self, layer: Layer, hidden: torch.Tensor) -> None:
        inner = layer.mlp_in(layer.mlp_norm(hidden))
        if self.gated:
            gate, inner = inner.chunk(2, -1)
            inner = self.activation(gate).mul_(inner)
        else:
            inner = self.activation(inner)
        layer.mlp_out.add_to(hidden, inner)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(self.final_norm(hidden))
