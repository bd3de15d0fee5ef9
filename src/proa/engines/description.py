"""The description that an engine is built from: a model without its weights, which come by `load`."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from ..policy.models import seeded_torch


@dataclass(frozen=True)
class ModelDescription:
    """A causal language model: its class, its configuration, and how an engine is to hold it."""

    architecture: type[PreTrainedModel]
    config: PreTrainedConfig
    end_ids: frozenset[int]
    """The tokens that end a completion."""
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        *,
        end_ids: Collection[int],
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> ModelDescription:
        """The description of a model, by default with its own `dtype` and `device`. The model is not kept."""
        return cls(
            type(model),
            copy.deepcopy(model.config),
            frozenset(end_ids),
            dtype or model.dtype,
            torch.device(device if device is not None else model.device),
        )

    def outline(self) -> PreTrainedModel:
        """Names, shapes and ties of the weights, without memory for them."""
        with torch.device("meta"):
            return cast(PreTrainedModel, self._model())

    def empty_model(self) -> PreTrainedModel:
        """A model for inference, with meaningless weights."""
        with seeded_torch(0):
            model = self._model()
        return cast(PreTrainedModel, model.to(self.device).eval().requires_grad_(False))

    def _model(self) -> Any:
        architecture: Any = self.architecture
        return architecture._from_config(copy.deepcopy(self.config), dtype=self.dtype)
