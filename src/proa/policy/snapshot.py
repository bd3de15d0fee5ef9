"""A model as it is now, to be saved while training continues."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel


def snapshot_model(model: PreTrainedModel) -> PreTrainedModel:
    """A model with copies on the CPU of what is trained. What is frozen is shared: nobody changes it."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            copied = parameter.detach().to("cpu", copy=True)
            memo[id(parameter)] = nn.Parameter(copied, requires_grad=True)
        else:
            memo[id(parameter)] = parameter
    return copy.deepcopy(model, memo)
