"""The reference policy: the policy as it was before training, frozen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from transformers import PreTrainedModel

from .lora import adapter_off, has_lora

Reference: TypeAlias = Callable[[], AbstractContextManager[PreTrainedModel]]
"""`with reference() as model:` is the frozen policy for as long as the block lasts."""


def reference_of(model: PreTrainedModel) -> Reference:
    """A frozen copy, made now; with LoRA the model itself with its adapter off, at no cost."""
    if has_lora(model):
        return lambda: _base_of(model)
    frozen = copy.deepcopy(model).requires_grad_(False)
    return lambda: _itself(frozen)


@contextmanager
def _base_of(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    with adapter_off(model):
        yield model


@contextmanager
def _itself(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    yield model
