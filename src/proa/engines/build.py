"""Engines by their names in the configuration."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from ..errors import SettingError
from .hf import HFEngine
from .native import NativeEngine
from .shapes import check_known

if TYPE_CHECKING:
    import torch

    from .protocol import Engine


def check_engine(kind: Literal["native", "hf"], model: torch.nn.Module) -> None:
    """Raise if the engine cannot run a model of this configuration; the weights are not looked at."""
    if kind == "native":
        check_known(model.config)


def build_engine(
    kind: Literal["native", "hf"],
    model: torch.nn.Module,
    *,
    end_ids: Collection[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    slots: int = 0,
    cache_tokens: int = 0,
) -> Engine:
    """An engine with a copy of a Hugging Face causal LM's weights; training `model` further does not change it.

    Of a model with a LoRA adapter it is the base's weights: the adapter comes merged, by `load`.

    `end_ids` are the tokens that end a completion. `slots` is the most sequences decoded at once, 0 for the engine's
    own number; `cache_tokens` is what the native engine's cache has room for, 0 for what the slots need. `dtype` and
    `device` are the model's own unless given.
    """
    if kind == "native":
        return NativeEngine(model, end_ids=end_ids, dtype=dtype, device=device, slots=slots, cache_tokens=cache_tokens)
    if kind == "hf":
        return HFEngine(model, end_ids=end_ids, dtype=dtype, device=device, slots=slots)
    raise SettingError(f"there is no engine {kind!r}: write 'native' or 'hf'")
