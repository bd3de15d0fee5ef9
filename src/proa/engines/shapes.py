"""The Hugging Face models that the native engine supports, and the places of their weights in its decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from ..errors import SettingError
from .decoder import Decoder, Layer, Linear, Norm
from .description import ModelDescription
from .packed_weight import LARGEST_MODEL, PackedWeight
from .weights import WeightPlaces

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
}
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those whose frequencies do not depend on the length


def build_decoder(description: ModelDescription) -> tuple[Decoder, WeightPlaces]:
    """A decoder of the model's shape, filled with noise, and the places to load its weights into."""
    config: Any = description.config
    check_known(config)
    outline = description.outline()
    allocator = _Allocator(outline.state_dict(keep_vars=True), description.dtype, description.device)
    decoder = _SHAPES[config.model_type](outline, config, allocator)
    places = allocator.weight_places()
    places.fill_with_noise()
    return decoder, places


def check_known(config: Any) -> None:
    """Raise unless the native engine supports models of this configuration."""
    if config.model_type not in _SHAPES:
        raise SettingError(
            f"the native engine does not know models of type {config.model_type!r}; it knows "
            f"{', '.join(sorted(_SHAPES))}. The engine 'hf' runs every Hugging Face causal LM"
        )
    if config.model_type == "gpt2":
        _activation(config.activation_function)
        return
    _activation(config.hidden_act)
    _refuse_sliding_windows(config)
    rope_type = config.rope_parameters["rope_type"]
    if rope_type not in _ROPE_TYPES:
        raise SettingError(
            f"the native engine does not know the rope type {rope_type!r} of this {config.model_type} model; "
            f"it knows {', '.join(_ROPE_TYPES)}. The engine 'hf' runs every Hugging Face causal LM"
        )


@dataclass
class _Allocator:
    """Allocates tensors for weights, and records the place of each weight in them."""

    weights: dict[str, torch.Tensor]
    """Meta tensors by name; a tied weight has several names."""
    dtype: torch.dtype
    device: torch.device
    places: dict[str, torch.Tensor] = field(default_factory=dict)

    def weight(self, name: str) -> torch.Tensor:
        """A tensor for one weight."""
        self.places[name] = torch.empty(self.weights[name].shape, dtype=self.dtype, device=self.device)
        return self.places[name]

    def linear(self, *names: str) -> Linear:
        """One layer for several of the model's, whose weights are `(outputs, inputs)`, with concatenated outputs."""
        biased = f"{names[0]}.bias" in self.weights
        weight = self._stacked([f"{name}.weight" for name in names]).t()
        bias = self._stacked([f"{name}.bias" for name in names]) if biased else None
        return Linear(weight, bias, self._packed(weight))

    def transposed_linear(self, name: str) -> Linear:
        """A layer of GPT-2, whose weights are `(inputs, outputs)`, with one for queries, keys and values."""
        weight = self.weight(f"{name}.weight")
        return Linear(weight, self.weight(f"{name}.bias"), self._packed(weight))

    def _packed(self, weight: torch.Tensor) -> PackedWeight | None:
        numbers = sum(weight.numel() for weight in self.weights.values())
        return PackedWeight.of(weight) if numbers <= LARGEST_MODEL else None

    def _stacked(self, names: list[str]) -> torch.Tensor:
        """One tensor for several weights, concatenated by rows; on a CPU matrices are transposed in memory."""
        parts = [self.weights[name] for name in names]
        rows = [part.shape[0] for part in parts]
        is_transposed = parts[0].dim() == 2 and self.device.type == "cpu"
        sizes = (*parts[0].shape[1:], sum(rows)) if is_transposed else (sum(rows), *parts[0].shape[1:])
        stacked = torch.empty(sizes, dtype=self.dtype, device=self.device)
        stacked = stacked.t() if is_transposed else stacked
        self.places |= dict(zip(names, stacked.split_with_sizes(rows), strict=True))
        return stacked

    def norm(self, name: str, epsilon: float) -> Norm:
        biased = f"{name}.bias" in self.weights
        return Norm(self.weight(f"{name}.weight"), self.weight(f"{name}.bias") if biased else None, epsilon)

    def head(self, name: str, tied_to: str) -> Linear:
        """The last product, to `(…, vocabulary)`, with the embeddings themselves if tied."""
        tied = self.weights[name] is self.weights[tied_to]
        weight = (self.places[tied_to] if tied else self._stacked([name])).t()
        return Linear(weight, None, self._packed(weight))

    def weight_places(self) -> WeightPlaces:
        """All places; a weight without a place must be tied to one with a place, or the model is not supported."""
        names = {id(self.weights[name]): name for name in self.places}
        tied = {name: names.get(id(weight), "") for name, weight in self.weights.items() if name not in self.places}
        unknown = [name for name, main in tied.items() if not main]
        if unknown:
            raise SettingError(f"the native engine does not know these weights of the model: {', '.join(unknown[:5])}")
        return WeightPlaces(self.places, tied)


def _llama(model: Any, config: Any, allocator: _Allocator) -> Decoder:
    """Llama, SmolLM and Mistral; Qwen2, with biases for queries, keys and values; Qwen3, which norms its heads."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    epsilon = config.rms_norm_eps
    normed = config.model_type == "qwen3"

    def layer(name: str) -> Layer:
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return Layer(
            attention_norm=allocator.norm(f"{name}.input_layernorm", epsilon),
            qkv=allocator.linear(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
            query_norm=allocator.norm(f"{attention}.q_norm", epsilon) if normed else None,
            key_norm=allocator.norm(f"{attention}.k_norm", epsilon) if normed else None,
            attention_out=allocator.linear(f"{attention}.o_proj"),
            attention_scale=width**-0.5,
            mlp_norm=allocator.norm(f"{name}.post_attention_layernorm", epsilon),
            mlp_in=allocator.linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            mlp_out=allocator.linear(f"{mlp}.down_proj"),
        )

    embeddings = allocator.weight("model.embed_tokens.weight")
    rotary = type(model.model.rotary_emb)(config)  # transformers' own reading of the configuration
    return Decoder(
        embeddings=embeddings,
        position_embeddings=None,
        inverse_frequencies=rotary.inv_freq.detach().clone().to(embeddings.device),
        rotation_scale=float(rotary.attention_scaling),
        layers=tuple(layer(f"model.layers.{number}") for number in range(config.num_hidden_layers)),
        final_norm=allocator.norm("model.norm", epsilon),
        head=allocator.head("lm_head.weight", "model.embed_tokens.weight"),
        query_heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        width=width,
        activation=_activation(config.hidden_act),
        gated=True,
    )


def _gpt2(_: Any, config: Any, allocator: _Allocator) -> Decoder:
    width = config.hidden_size // config.num_attention_heads
    epsilon = config.layer_norm_epsilon

    def layer(number: int) -> Layer:
        name = f"transformer.h.{number}"
        scale = width**-0.5 if config.scale_attn_weights else 1.0
        return Layer(
            attention_norm=allocator.norm(f"{name}.ln_1", epsilon),
            qkv=allocator.transposed_linear(f"{name}.attn.c_attn"),
            query_norm=None,
            key_norm=None,
            attention_out=allocator.transposed_linear(f"{name}.attn.c_proj"),
            attention_scale=scale / (number + 1) if config.scale_attn_by_inverse_layer_idx else scale,
            mlp_norm=allocator.norm(f"{name}.ln_2", epsilon),
            mlp_in=allocator.transposed_linear(f"{name}.mlp.c_fc"),
            mlp_out=allocator.transposed_linear(f"{name}.mlp.c_proj"),
        )

    embeddings = allocator.weight("transformer.wte.weight")
    return Decoder(
        embeddings=embeddings,
        position_embeddings=allocator.weight("transformer.wpe.weight"),
        inverse_frequencies=None,
        rotation_scale=1.0,
        layers=tuple(layer(number) for number in range(config.num_hidden_layers)),
        final_norm=allocator.norm("transformer.ln_f", epsilon),
        head=allocator.head("lm_head.weight", "transformer.wte.weight"),
        query_heads=config.num_attention_heads,
        key_heads=config.num_attention_heads,
        width=width,
        activation=_activation(config.activation_function),
        gated=False,
    )


def _refuse_sliding_windows(config: Any) -> None:
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    if sliding or (config.model_type == "mistral" and config.sliding_window is not None):
        raise SettingError(
            f"this {config.model_type} model attends through a sliding window, which the native engine does not; "
            "the engine 'hf' does"
        )


def _activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    if name not in _ACTIVATIONS:
        raise SettingError(
            f"the native engine does not know the activation {name!r}; it knows {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


_SHAPES: dict[str, Callable[[Any, Any, _Allocator], Decoder]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
}
