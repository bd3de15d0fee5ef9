"""LoRA in plain tensors: which layers have an adapter, and the weights that a base and an adapter make together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ..errors import SettingError


class AdapterError(SettingError):
    """An adapter does not fit its model, its settings or its folder."""


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer by its Hugging Face name. GPT-2's weights are transposed, `(inputs, outputs)`."""

    name: str
    inputs: int
    outputs: int
    transposed: bool

    @property
    def weight_name(self) -> str:
        return f"{self.name}.weight"

    @property
    def weight_shape(self) -> tuple[int, int]:
        return (self.inputs, self.outputs) if self.transposed else (self.outputs, self.inputs)

    @property
    def names(self) -> tuple[str, str]:
        """The names of its adapter's two tensors, A `(rank, inputs)` and B `(outputs, rank)`."""
        return f"{self.name}.lora_A.weight", f"{self.name}.lora_B.weight"


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """The layers and the scaling of an adapter, which a process without the trainer's model needs to use it.

    A weight with an adapter is `W + scaling * B A`.
    """

    layers: tuple[LinearLayer, ...]
    rank: int
    scaling: float

    def shapes(self) -> dict[str, tuple[int, int]]:
        """The shape of each of the adapter's tensors, by name."""
        shapes: dict[str, tuple[int, int]] = {}
        for layer in self.layers:
            name_A, name_B = layer.names
            shapes[name_A] = (self.rank, layer.inputs)
            shapes[name_B] = (layer.outputs, self.rank)
        return shapes

    def check(self, adapter: Mapping[str, torch.Tensor]) -> None:
        """Raise unless names, shapes and floating-point dtypes fit exactly."""
        shapes = self.shapes()
        problems = {
            "missing": [name for name in shapes if name not in adapter],
            "unexpected": [name for name in adapter if name not in shapes],
            "wrong": [
                f"{name} is {_describe(tensor)} and should be {shapes[name]}"
                for name, tensor in adapter.items()
                if name in shapes and (tensor.shape != shapes[name] or not tensor.is_floating_point())
            ],
        }
        if any(problems.values()):
            listed = "; ".join(f"{label}: {_list_names(names)}" for label, names in problems.items() if names)
            raise AdapterError(f"these tensors are not an adapter of this model; nothing was changed. {listed}")


class AdapterOverBase:
    """Keeps a base, and merges adapters with it, each time from the base and never from merged weights.

    The base is not copied, and must not be changed.
    """

    def __init__(self, base: Mapping[str, torch.Tensor], layout: AdapterLayout) -> None:
        self._base = {name: weight.detach() for name, weight in base.items()}
        self._layout = layout
        for layer in layout.layers:
            weight = self._base.get(layer.weight_name)
            if weight is None:
                raise AdapterError(f"an adapter for another base: this one has no {layer.weight_name}")
            if weight.shape != layer.weight_shape:
                raise AdapterError(
                    f"an adapter for another base: {layer.weight_name} is {_describe(weight)} here "
                    f"and {layer.weight_shape} there"
                )

    def merged(self, adapter: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """All weights by their Hugging Face names, in the base's dtypes; weights without an adapter are not copied."""
        return dict(self.adapted(adapter))

    def adapted(self, adapter: Mapping[str, torch.Tensor]) -> AdaptedWeights:
        """The same, each merged when it is accessed."""
        self._layout.check(adapter)
        return AdaptedWeights(self._base, adapter, self._layout)


class AdaptedWeights(Mapping[str, torch.Tensor]):
    """All weights of a base with an adapter, each merged when it is accessed. An engine that applies adapters itself
    uses `base` and `adapter`."""

    def __init__(
        self, base: Mapping[str, torch.Tensor], adapter: Mapping[str, torch.Tensor], layout: AdapterLayout
    ) -> None:
        self.base = base
        """The same object for the same base."""
        self.adapter = adapter
        self.layout = layout
        self._layers = {layer.weight_name: layer for layer in layout.layers}

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)

    @torch.no_grad()
    def __getitem__(self, name: str) -> torch.Tensor:
        layer = self._layers.get(name)
        return self.base[name] if layer is None else self._sum(layer)

    def _sum(self, layer: LinearLayer) -> torch.Tensor:
        weight = self.base[layer.weight_name]
        A_RI, B_OR = (self.adapter[name] for name in layer.names)
        # Summed in float32 at least, and rounded once to the base's dtype.
        dtype = torch.promote_types(torch.promote_types(weight.dtype, B_OR.dtype), torch.float32)
        A_RI, B_OR = (factor.detach().to(weight.device, dtype) for factor in (A_RI, B_OR))
        update_OI = (B_OR @ A_RI) * self.layout.scaling
        return (weight.to(dtype) + (update_OI.T if layer.transposed else update_OI)).to(weight.dtype)


def linear_layers(model: nn.Module) -> dict[str, LinearLayer]:
    """The model's linear layers by name, with or without an adapter, but not the adapter's own."""
    layers: dict[str, LinearLayer] = {}
    for name, module in base_modules(model):
        if isinstance(module, nn.Linear):
            layers[name] = LinearLayer(name, module.weight.shape[1], module.weight.shape[0], transposed=False)
        elif isinstance(module, Conv1D):
            layers[name] = LinearLayer(name, module.weight.shape[0], module.weight.shape[1], transposed=True)
    return layers


def base_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules by their names without an adapter."""
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(inside):
            continue
        if is_adapted(module):
            inside = (f"{name}.",)
            yield name, module.base_layer
        else:
            yield name, module


def adapted_modules(model: nn.Module) -> dict[str, Any]:
    """peft's modules around the layers that have an adapter, by the layer's name."""
    return {name: module for name, module in model.named_modules() if is_adapted(module)}


def is_adapted(module: nn.Module) -> bool:
    """Whether this is peft's module around a layer, judged by its parts, as peft need not be installed."""
    return "base_layer" in module._modules and "lora_A" in module._modules


def _describe(tensor: torch.Tensor) -> str:
    return str(tuple(tensor.shape)) if tensor.is_floating_point() else f"{tuple(tensor.shape)} of {tensor.dtype}"


def _list_names(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
