"""How a model computes while it is trained: its attention, which activations are kept, and whether layers are compiled.

None of it changes the results, beyond the last bits. Activation checkpointing keeps only the input of each layer and
computes the layer again in the backward pass, to the same bits. Layers are compiled one by one: they are alike, so the
first one's kernels serve all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..errors import SettingError
from ..model_trials import is_compiled
from ..slow_work import saying_if_slow
from ..spelling import did_you_mean
from .decoder_pass import find_decoder, use_segments
from .log_probs import compile_head
from .segments import attention_as

log = logging.getLogger("proa.policy")

_INTERFACE: Any = ALL_ATTENTION_FUNCTIONS
_COMPILED_SHAPES = 64
"""After this many shapes torch would silently stop compiling and compute slowly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSettings:
    """How a model computes; the defaults are transformers'."""

    attention: str = "auto"
    """`segments` computes sequences end to end, without padding; any other name is transformers', with padding. `auto`
    is `segments` on a GPU in half precision."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: a quarter slower, far less memory."""
    compile: bool = False
    """Compile layers with `torch.compile`, when they are first used."""


def set_up_computing(model: PreTrainedModel, settings: ComputeSettings) -> None:
    """Apply the settings to a model; repeat it for every copy of the model."""
    _use_attention(model, settings.attention)
    layers = _layers(model)
    for asked, name in ((settings.gradient_checkpointing, "gradient_checkpointing"), (settings.compile, "compile")):
        if asked and not layers:
            raise SettingError(f"{type(model).__name__} does not say which its layers are: leave out model.{name}")
    for layer in layers:
        _checkpoint(layer, find_decoder(model).config, settings.gradient_checkpointing)
    compile_head(model, settings.compile)
    _give_first_layer_gradients(model, settings.compile)
    for layer in layers:
        layer._compiled_call_impl = None
    if settings.compile:
        check_compiler(model.device.type)
        _allow_shapes()
        for layer in layers:
            layer.compile(dynamic=False)


def has_layers(model: PreTrainedModel) -> bool:
    """Whether its layers are known, which can then be checkpointed or compiled."""
    return bool(_layers(model))


def _layers(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    return [layer for layer in find_decoder(model).modules() if isinstance(layer, GradientCheckpointingLayer)]


def saying_if_compiled(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Inside, a step that takes long because layers are compiled is reported."""
    if not is_compiled(model):
        return nullcontext()
    return saying_if_slow(
        "layers are being compiled, once for each size of batch; model.compile: false does without", log
    )


def _use_attention(model: PreTrainedModel, name: str) -> None:
    if name in ("auto", "segments"):
        use_segments(find_decoder(model), None if name == "auto" else True)
        return
    try:
        model.set_attn_implementation(name)
    except (ValueError, ImportError) as error:
        known = ("auto", "segments", "eager", *_INTERFACE.valid_keys())
        raise SettingError(f"model.attention {name!r} cannot be used{did_you_mean(name, known)}: {error}") from error
    use_segments(find_decoder(model), False)


def _checkpoint(layer: Any, config: Any, wanted: bool) -> None:
    layer.gradient_checkpointing = wanted
    if wanted:
        layer._gradient_checkpointing_func = partial(_computed_twice, config, layer)


def _computed_twice(config: Any, module: nn.Module, layer: Callable[..., Any], *inputs: Any) -> Any:
    """Compute a layer, and again in the backward pass with the attention of the first time. transformers requires its
    training flag; inside it is off both times, for dropout."""
    attention = config._attn_implementation

    def compute(*inputs: Any) -> Any:
        before, module.training = module.training, False
        try:
            with attention_as(config, attention):
                return layer(*inputs)
        finally:
            module.training = before

    return checkpoint(compute, *inputs, use_reentrant=False, preserve_rng_state=False)


def _give_first_layer_gradients(model: PreTrainedModel, wanted: bool) -> None:
    """Have the output of frozen embeddings, as under an adapter, require a gradient: otherwise the first layer is
    compiled apart from the others, which takes as long as compiling all of them."""
    embeddings: Any = find_decoder(model).get_input_embeddings()  # type: ignore[operator]
    hooks = embeddings._forward_hooks
    for handle in [handle for handle, hook in hooks.items() if hook is _require_gradient]:
        del hooks[handle]
    if wanted:
        embeddings.register_forward_hook(_require_gradient)


def _require_gradient(_embeddings: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
    if torch.is_grad_enabled() and not output.requires_grad:
        output.requires_grad_()


@cache
def check_compiler(device_type: str) -> None:
    """Raise unless torch can compile for this kind of device here."""
    keep_triton_cache()
    try:
        torch.compile(_one_more)(torch.zeros(2, device=device_type))
    except Exception as error:  # each part of the compiler has errors of its own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SettingError(
            f"torch cannot compile for {device_type} on this machine ({reason}): set model.compile to false"
        ) from error


def keep_triton_cache() -> None:
    """Keep Triton's cache in its default place. Torch's compiler moves it when it compiles something, but not when that
    is cached: the second run would compile the engine's kernels again."""
    try:
        folder = Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no writable home: then torch's compiler chooses the place
        return
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder))


def _one_more(numbers: torch.Tensor) -> torch.Tensor:
    return numbers + 1


def _allow_shapes() -> None:
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, _COMPILED_SHAPES)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 8 * _COMPILED_SHAPES)
