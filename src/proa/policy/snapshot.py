"""Snapshots of models, to be saved while training continues."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel


def snapshot_model(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model with trained parameters on the CPU; frozen ones are shared."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            copied = parameter.detach().to("cpu", copy=True)
            memo[id(parameter)] = nn.Parameter(copied, requires_grad=True)
        else:
            memo[id(parameter)] = parameter
    return copy.deepcopy(model, memo)
