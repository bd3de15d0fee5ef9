"""What `auto` stands for in a configuration: decided once, from the model and the device, and written to `config.json`.

A run that is resumed keeps what was decided when it began, whatever machine it continues on.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..config import DetachedConfig, RunConfig, SupervisedConfig
from ..config.sections import AUTO, CPU_TOKEN_BUDGET, GIVEN, ModelSection
from ..engines.shapes import check_known
from ..errors import SettingError
from ..policy.computing import has_layers
from ..policy.hub import is_hub_name, pinned_name
from ..policy.models import outline_model, read_dtype
from ..resume.configuration import saved_config
from .foreseen import choose_device, with_device
from .given import Given
from .loading import load_training_task, read_device
from .supervised_kinds import supervised_kind

LARGEST_BUDGET = 32_768
"""Tokens of a micro-batch beyond which a GPU gains nothing."""
SMALLEST_BUDGET = 1_024
CAUTIOUS_BUDGET = 8_192
"""For models whose memory for a token is unknown."""
_KEYS = {
    "model": ("device", "dtype", "gradient_checkpointing", "compile"),
    "optimizer": ("token_budget", "share_prompts"),
    "engine": ("sleep",),
}
"""What may be `auto`, by section."""


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """The memory that training takes, in bytes."""

    weights: int
    """Weights, gradients and moments, and the engine's weights: independent of the size of a micro-batch."""
    of_a_token: int
    """Activations of one token, if all are kept for the backward pass."""
    of_a_token_checkpointed: int
    """Activations of one token, if only the input of each layer is kept."""


def resolve_automatic(config: RunConfig, given: Given, *, resumed: bool = False) -> RunConfig:
    """The configuration with a value for every `auto`; with `resumed`, the values of the run in its folder."""
    config = resolve_device(config, given, resumed=resumed)
    saved = _saved(config) if resumed else {}
    config = _pin(_with_steps(config, given), saved.get("model", {}))
    return _replace_auto(config, _on_gpu(config, given) if read_device(config.model.device).type == "cuda" else _ON_CPU)


def resolve_device(config: RunConfig, given: Given, *, resumed: bool = False) -> RunConfig:
    """Resolve what takes no time: device and dtype, and the values that a resumed run keeps."""
    if resumed:
        saved = _saved(config)
        kept = {
            section: {key: saved[section][key] for key in keys if key in saved.get(section, {})}
            for section, keys in _KEYS.items()
        }
        config = _replace_auto(config, kept)
    if given.model is None:
        return with_device(config, lambda: choose_device(config, torch.cuda.is_available))
    dtype = str(given.model.dtype).removeprefix("torch.")
    return _replace_auto(config, {"model": {"device": str(given.model.device), "dtype": dtype}})


def _saved(config: RunConfig) -> dict[str, Any]:
    """The configuration of the run in the folder, if there is one."""
    return saved_config(config.folder) if (config.folder / "config.json").is_file() else {}


def _with_steps(config: RunConfig, given: Given) -> RunConfig:
    """The configuration with `total_steps` in place of `epochs`, counting rows that are left out later as too long."""
    if config.epochs is None:
        return config
    log = logging.getLogger("proa.tasks")
    before, log.disabled = log.disabled, True  # the run itself reports the data
    try:
        if isinstance(config, SupervisedConfig):
            rows, together = len(supervised_kind(config, given).rows), config.train_batch_size
        else:
            assert isinstance(config, DetachedConfig), "there are two kinds"
            rows, together = len(load_training_task(config, given).rows), config.prompts_per_step
    finally:
        log.disabled = before
    steps = max(1, math.ceil(config.epochs * rows / together))
    return config.model_copy(update={"total_steps": steps, "epochs": None})


def _pin(config: RunConfig, saved: Mapping[str, Any]) -> RunConfig:
    """Add commits to names of the Hub, which may move; a resumed run keeps its commits."""
    section, pinned = config.model, {}
    for key in ("path", "tokenizer"):
        name = getattr(section, key)
        if isinstance(name, str) and is_hub_name(name):
            earlier = str(saved.get(key))
            is_same = earlier.partition("@")[0] == name
            pinned[key] = earlier if is_same else pinned_name(name, trust_remote_code=section.trust_remote_code)
    return config.model_copy(update={"model": section.model_copy(update=pinned)}) if pinned else config


_ON_CPU: Mapping[str, Mapping[str, Any]] = {
    "model": {"gradient_checkpointing": False, "compile": False},
    "optimizer": {"token_budget": CPU_TOKEN_BUDGET, "share_prompts": False},
    "engine": {"sleep": False},
}


def _replace_auto(config: RunConfig, values: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """The configuration with these values, by section, in place of `auto`."""
    sections = {}
    for name, found in values.items():
        section = getattr(config, name)
        changes = {key: value for key, value in found.items() if getattr(section, key, None) == AUTO != value}
        if changes:
            sections[name] = section.model_copy(update=changes)
    return config.model_copy(update=sections) if sections else config


def _on_gpu(config: RunConfig, given: Given) -> dict[str, dict[str, Any]]:
    """The values on a GPU. What works for some models only is off for others: `auto` never fails."""
    if not any(getattr(getattr(config, section), key, None) == AUTO for section, keys in _KEYS.items() for key in keys):
        return {}
    model = _outline(config, given)
    in_half = read_dtype(config.model.dtype) in (torch.bfloat16, torch.float16)
    is_known = in_half and config.model.attention in (AUTO, "segments") and _is_plain(model)
    needs = memory_needs(config, model)
    memory = _device_memory(config.model)
    checkpoints, budget = (False, CAUTIOUS_BUDGET) if needs is None else fit_memory(needs, memory)
    return {
        "model": {
            "gradient_checkpointing": checkpoints and has_layers(model),
            "compile": is_known and has_layers(model) and _can_compile(),
        },
        "optimizer": {"token_budget": budget, "share_prompts": is_known},
        "engine": {
            "sleep": needs is not None and _takes_turns(config) and is_short(needs, memory, checkpoints, budget)
        },
    }


def _takes_turns(config: RunConfig) -> bool:
    """Whether makers are idle on the trainer's device while it computes."""
    is_elsewhere = config.engine.device not in (None, config.model.device)
    return isinstance(config, DetachedConfig) and config.max_staleness == 0 and not is_elsewhere


def is_short(needs: MemoryNeeds, memory: int, checkpoints: bool, budget: int) -> bool:
    """Whether training and an engine's cache, a quarter of the memory at the most, do not fit in side by side.

    >>> is_short(MemoryNeeds(weights=10, of_a_token=2, of_a_token_checkpointed=1), 100, checkpoints=False, budget=40)
    True
    >>> is_short(MemoryNeeds(weights=10, of_a_token=2, of_a_token_checkpointed=1), 100, checkpoints=True, budget=40)
    False
    """
    of_a_token = needs.of_a_token_checkpointed if checkpoints else needs.of_a_token
    return needs.weights + budget * of_a_token + memory // 4 > memory


def _is_plain(model: PreTrainedModel) -> bool:
    """Whether segments implement its attention: the native engine's architectures, without windows."""
    try:
        check_known(model.config)
    except SettingError:
        return False
    return True


def fit_memory(needs: MemoryNeeds, memory: int) -> tuple[bool, int]:
    """Whether to checkpoint, and how many tokens to compute at once: up to `LARGEST_BUDGET`, as they fit in four fifths
    of the memory; the rest is for logits, caches and reserves.

    >>> small = MemoryNeeds(weights=10 * 2**30, of_a_token=10 * 2**20, of_a_token_checkpointed=2**20)
    >>> fit_memory(small, 40 * 2**30), fit_memory(small, 16 * 2**30)
    ((True, 22528), (True, 2048))
    """
    room = memory * 4 // 5 - needs.weights
    if room >= LARGEST_BUDGET * needs.of_a_token:
        return False, LARGEST_BUDGET
    fitting = room // needs.of_a_token_checkpointed // SMALLEST_BUDGET * SMALLEST_BUDGET
    return True, min(LARGEST_BUDGET, max(SMALLEST_BUDGET, fitting))


def memory_needs(config: RunConfig, model: PreTrainedModel) -> MemoryNeeds | None:
    """Estimated from the model's shape; None for one that does not have the usual sizes. A trained weight in half
    precision takes 2 bytes for itself and 2 for its gradient, and in float32 4 for the weight, 4 for the gradient and 8
    for its moments; engines hold up to two versions, and one is published. On an H200 a layer of a 0.6B model kept 42
    KB for a token, where the estimate is 38."""
    text: Any = model.config.get_text_config()
    names = ("num_attention_heads", "hidden_size", "num_hidden_layers")
    if not all(isinstance(getattr(text, name, None), int) for name in names):
        return None
    heads, hidden, layers = (getattr(text, name) for name in names)
    width = _number(text, "head_dim", hidden // heads)
    key_heads = _number(text, "num_key_value_heads", heads)
    inner = _number(text, "intermediate_size", 4 * hidden)
    itemsize = read_dtype(config.model.dtype).itemsize
    layer_bytes = itemsize * (4 * hidden + 2 * heads * width + 2 * key_heads * width + 3 * inner)
    return MemoryNeeds(
        weights=sum(parameter.numel() for parameter in model.parameters()) * _weight_bytes(config, itemsize),
        of_a_token=layers * layer_bytes,
        of_a_token_checkpointed=layers * hidden * itemsize + 2 * layer_bytes,
    )


def _weight_bytes(config: RunConfig, itemsize: int) -> int:
    trained = itemsize if config.lora is not None else 20 if itemsize == 2 else 16
    if not isinstance(config, DetachedConfig):
        return trained
    copies = 3 * itemsize
    if config.lora is None and config.algorithm.build().needs_reference:
        copies += itemsize
    separate = config.critic is not None and config.critic.kind == "separate"
    return trained + copies + (trained if separate else 0)


def _number(text: Any, name: str, default: int) -> int:
    value = getattr(text, name, None)
    return value if isinstance(value, int) and value > 0 else default


def _outline(config: RunConfig, given: Given) -> PreTrainedModel:
    if given.model is not None or config.model.path == GIVEN:
        assert given.model is not None, "what was given is here"
        return given.model
    source: Any = config.model.path if config.model.path is not None else config.model.config
    return outline_model(source, dtype=config.model.dtype, trust_remote_code=config.model.trust_remote_code)


def _device_memory(section: ModelSection) -> int:
    if not torch.cuda.is_available():  # the GPU is in another machine, so its memory is unknown
        return 0
    return int(torch.cuda.get_device_properties(torch.device(section.device)).total_memory)


def _can_compile() -> bool:
    """Triton compiles with the system's C compiler."""
    has_compiler = bool(os.environ.get("CC")) or any(shutil.which(name) for name in ("cc", "gcc", "clang"))
    return has_compiler and importlib.util.find_spec("triton") is not None
