"""From what a trainer publishes to the weights that an engine loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from transformers import PreTrainedModel

from .adapter_layout import AdapterOverBase
from .lora import adapter_layout, adapter_weights, base_weights, has_lora
from .models import weights_of

WholeWeights: TypeAlias = Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]


def whole_weights(model: PreTrainedModel) -> Mapping[str, torch.Tensor]:
    """All weights under their Hugging Face names, an adapter merged in."""
    over_base = whole_weights_over(model)
    return weights_of(model) if over_base is None else over_base(adapter_weights(model))


def all_parameters(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What the run's digest is over: all weights, and the adapter's beside its base's; those that are trained are there
    in float32, from the optimizer, where the model has them in less."""
    return {**base_weights(model), **adapter_weights(model)} if has_lora(model) else weights_of(model)


def whole_weights_over(model: PreTrainedModel) -> WholeWeights | None:
    """Puts an adapter of this model over its base, which stays as it is; None where whole weights travel anyway."""
    return AdapterOverBase(base_weights(model), adapter_layout(model)).merged if has_lora(model) else None
