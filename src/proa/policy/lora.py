"""LoRA: a small trained adapter over a frozen base, which is also the reference policy, with the adapter off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import torch
from torch import nn
from torch.nn import functional

from ..spelling import did_you_mean
from .adapter_layout import (
    AdapterError,
    AdapterLayout,
    LinearLayer,
    adapted_modules,
    base_modules,
    linear_layers,
)
from .models import model_weights, seeded_torch

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel

TargetModules: TypeAlias = Literal["all-linear"] | tuple[str, ...]

_ADAPTER = "default"  # peft's name for the only adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """The size and the layers of an adapter. Without dropout, so that no step of training is random."""

    rank: int = 16
    alpha: float = 32.0
    """The adapter is scaled by `alpha / rank`."""
    target_modules: TargetModules = "all-linear"
    """Names of layers, or suffixes such as `q_proj` for all blocks; "all-linear" is all but the head."""
    rslora: bool = False
    """Scale by `alpha / sqrt(rank)`, so that a larger rank does not learn more slowly (rsLoRA)."""

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise AdapterError(f"lora.rank must be a whole number, at least 1, not {self.rank!r}")
        if not isinstance(self.alpha, int | float) or not 0 < self.alpha < math.inf:
            raise AdapterError(f"lora.alpha must be a number above 0, not {self.alpha!r}")
        if not isinstance(self.rslora, bool):
            raise AdapterError(f"lora.rslora must be true or false, not {self.rslora!r}")
        object.__setattr__(self, "target_modules", _checked_targets(self.target_modules))

    @property
    def scaling(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def layout(self, model: PreTrainedModel) -> AdapterLayout:
        """The layout of the adapter that `add_lora` adds to this model."""
        return AdapterLayout(tuple(_targeted(model, self.target_modules)), self.rank, self.scaling)


def add_lora(model: PreTrainedModel, settings: LoraSettings, *, seed: int) -> None:
    """Add an adapter to the model, in place; from then on only the adapter is trained.

    B is zero, so the model's results do not change. A is drawn from `seed`, on the CPU and in float32, independent of
    dtype and device. The adapter is float32 (float64 over such a base), as small steps would be lost in bfloat16.
    """
    if has_lora(model):
        raise AdapterError("this model has an adapter already; train that one, or load the base again")
    layout = settings.layout(model)
    config = peft_config(settings, layout)
    with seeded_torch(seed):  # peft first draws numbers of its own
        model.add_adapter(config, _ADAPTER)
    if adapter_layout(model) != layout:
        raise AdapterError(f"peft put the adapter in other layers of {type(model).__name__} than it was asked to")
    _initialise(model, layout, seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(f".{_ADAPTER}." in name and ".lora_" in name)


def has_lora(model: PreTrainedModel) -> bool:
    return bool(adapted_modules(model))


def adapter_layout(model: PreTrainedModel) -> AdapterLayout:
    """The layout of the model's adapter."""
    modules = _adapted(model)
    layers = linear_layers(model)
    first = next(iter(modules.values()))
    return AdapterLayout(tuple(layers[name] for name in modules), first.r[_ADAPTER], first.scaling[_ADAPTER])


def lora_settings(model: PreTrainedModel) -> LoraSettings:
    """The settings of the model's adapter, its layers by their shortest names."""
    _adapted(model)
    config: LoraConfig = cast(Any, model).peft_config[_ADAPTER]
    targets = tuple(layer.name for layer in adapter_layout(model).layers)
    return LoraSettings(
        rank=config.r, alpha=config.lora_alpha, target_modules=_shortest(targets, model), rslora=config.use_rslora
    )


def adapter_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The adapter's tensors, `<layer>.lora_A.weight` and `<layer>.lora_B.weight`: the model's own, not copies."""
    weights: dict[str, torch.Tensor] = {}
    for name, module in _adapted(model).items():
        weights[f"{name}.lora_A.weight"] = module.lora_A[_ADAPTER].weight.detach()
        weights[f"{name}.lora_B.weight"] = module.lora_B[_ADAPTER].weight.detach()
    return weights


def base_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The result of `model_weights` without the adapter: the same names, the model's own tensors."""
    adapted = adapted_modules(model).keys()
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in model_weights(model).items():
        layer, inside, parameter = name.partition(".base_layer.")
        if inside and layer in adapted:
            weights[f"{layer}.{parameter}"] = tensor
        elif name.partition(".lora_")[0] not in adapted:
            weights[name] = tensor
    return weights


@contextmanager
def adapter_off(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model is its base, bit for bit, in all threads that use it."""
    modules = list(_adapted(model).values())
    were_off = [module.disable_adapters for module in modules]
    # peft freezes an adapter that is off; restore what was trainable.
    trainable = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for module in modules:
            module.enable_adapters(False)
        yield
    finally:
        for module, was_off in zip(modules, were_off, strict=True):
            module.enable_adapters(not was_off)
        for parameter, requires_grad in trainable:
            parameter.requires_grad_(requires_grad)


def peft_config(settings: LoraSettings, layout: AdapterLayout, base_path: str | None = None) -> LoraConfig:
    """peft's description of an adapter, its layers by their full names."""
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise AdapterError("LoRA needs the package peft: pip install 'proa[lora]'") from error
    return LoraConfig(
        r=settings.rank,
        lora_alpha=cast(int, int(settings.alpha) if settings.alpha == int(settings.alpha) else settings.alpha),
        target_modules=[layer.name for layer in layout.layers],
        use_rslora=settings.rslora,
        fan_in_fan_out=all(layer.transposed for layer in layout.layers),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_path,
    )


def _initialise(model: PreTrainedModel, layout: AdapterLayout, seed: int) -> None:
    """Draw A uniformly within `1 / sqrt(inputs)`, like linear layers; B is zero."""
    generator = torch.Generator().manual_seed(seed)
    modules = adapted_modules(model)
    for layer in layout.layers:
        module = modules[layer.name]
        weight = module.base_layer.weight
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        bound = 1.0 / math.sqrt(layer.inputs)
        A_RI = torch.empty(layout.rank, layer.inputs, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
        B_OR = torch.zeros(layer.outputs, layout.rank, dtype=dtype, device=weight.device)
        module.lora_A[_ADAPTER] = _InputDtypeLinear(A_RI.to(weight.device, dtype))
        module.lora_B[_ADAPTER] = _InputDtypeLinear(B_OR)
        module.cast_input_dtype_enabled = False


class _InputDtypeLinear(nn.Linear):
    """A matrix of an adapter, kept in float32 and multiplied in the dtype of its inputs. peft's own converts the far
    larger inputs, keeps them for the backward pass, and multiplies in float32 without tensor cores."""

    def __init__(self, weight_OI: torch.Tensor) -> None:
        super().__init__(weight_OI.shape[1], weight_OI.shape[0], bias=False, device="meta")
        self.weight = nn.Parameter(weight_OI)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        return functional.linear(input, self.weight.to(input.dtype))


def _adapted(model: PreTrainedModel) -> dict[str, Any]:
    if modules := adapted_modules(model):
        return modules
    raise AdapterError("this model has no adapter: add_lora gives it one")


def _checked_targets(given: object) -> TargetModules:
    if given == "all-linear":
        return "all-linear"
    if isinstance(given, tuple | list) and given and all(isinstance(name, str) and name for name in given):
        return tuple(given)
    raise AdapterError(f"lora.target_modules must be 'all-linear' or a list of names, as ['q_proj'], not {given!r}")


def _targeted(model: PreTrainedModel, targets: TargetModules) -> list[LinearLayer]:
    """The layers that settings name, in the model's order."""
    layers = linear_layers(model)
    if targets == "all-linear":
        chosen = layers.keys() - _head_names(model)
    else:
        chosen = {name for target in targets for name in _named(target, layers, model)}
    _refuse_tied(chosen, model)
    if not chosen:
        raise AdapterError(f"{type(model).__name__} has no linear layers that could have an adapter")
    return [layer for name, layer in layers.items() if name in chosen]


def _named(target: str, layers: dict[str, LinearLayer], model: PreTrainedModel) -> list[str]:
    found = [name for name in layers if _has_suffix(name, target)]
    if found:
        return found
    known = sorted({name.rpartition(".")[2] for name in layers})
    near = did_you_mean(target, known) or f"; it has {', '.join(known)}"
    raise AdapterError(f"lora.target_modules: {type(model).__name__} has no linear layer {target!r}{near}")


def _has_suffix(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _head_names(model: PreTrainedModel) -> set[str]:
    """The output head; for a reward model, everything outside of the decoder."""
    head = cast(Any, model).get_output_embeddings()
    if head is not None:
        return {name for name, module in base_modules(model) if _weight(module) is head.weight}
    prefix = f"{model.base_model_prefix}."
    return {name for name, _ in base_modules(model) if not name.startswith(prefix)}


def _refuse_tied(names: set[str], model: PreTrainedModel) -> None:
    """Raise for a tied weight: a change in one of its layers could not be saved in the merged model."""
    users: dict[int, list[str]] = {}
    for name, module in base_modules(model):
        if _weight(module) is not None:
            users.setdefault(id(_weight(module)), []).append(name)
    for shared in users.values():
        if len(shared) > 1 and (tied := names.intersection(shared)):
            raise AdapterError(
                f"lora.target_modules: {min(tied)} cannot have an adapter, for its weight is tied: "
                f"{' and '.join(shared)} share it"
            )


def _weight(module: torch.nn.Module) -> torch.nn.Parameter | None:
    return module._parameters.get("weight")


def _shortest(names: tuple[str, ...], model: PreTrainedModel) -> tuple[str, ...]:
    """The last parts of the names if they match exactly these layers, else the names."""
    words = sorted({name.rpartition(".")[2] for name in names})
    meant = {name for name, _ in base_modules(model) if any(_has_suffix(name, word) for word in words)}
    return tuple(words) if meant == set(names) else names
