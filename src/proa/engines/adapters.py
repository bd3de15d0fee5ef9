"""Models with a LoRA adapter: an engine begins with the base beneath it, and is then given merged weights."""

from __future__ import annotations

from typing import Any

import torch


def base_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The model's state under the names that it has without an adapter."""
    adapted = {name for name, module in model.named_modules() if _is_adapted(module)}
    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        layer, inside, parameter = name.partition(".base_layer.")
        if inside and layer in adapted:
            state[f"{layer}.{parameter}"] = tensor.detach()
        elif name.partition(".lora_")[0] not in adapted:
            state[name] = tensor.detach()
    return state


def remove_adapters(model: Any) -> None:
    """Put the layers beneath an adapter back in its place; the adapter's numbers are lost."""
    adapted = [(name, module) for name, module in model.named_modules() if _is_adapted(module)]
    for name, module in adapted:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, module.base_layer)
    if adapted:
        del model.peft_config
        model._hf_peft_config_loaded = False


def _is_adapted(module: torch.nn.Module) -> bool:
    """Whether this is peft's module around a layer; asked by its parts, for peft need not be installed."""
    return "base_layer" in module._modules and "lora_A" in module._modules
