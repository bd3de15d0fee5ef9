"""An adapter in PEFT's format: two files, read and written without peft, and our note of its base."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from .adapter_layout import AdapterError, AdapterLayout, linear_layers
from .folder_files import outside

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
NOTE_FILE = "proa_adapter.json"
SAFETENSORS_ALONE = "reading one can run any code, so Proa reads safetensors alone"
PREFIX = "base_model.model."
"""PEFT's name for the model itself."""

_WITHOUT_EFFECT = frozenset(
    {
        "alora_invocation_string", "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "exclude_modules",
        "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha",
        "lora_dropout", "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "revision",
        "runtime_config", "target_modules", "task_type", "use_rslora",
    }
)  # fmt: skip
"""Keys that may have any value: those read here, and those that do not affect a trained adapter's results."""


@dataclass(frozen=True)
class SavedAdapter:
    """An adapter read from its folder, its tensors by the names of `adapter_weights`."""

    folder: Path
    rank: int
    alpha: float
    rslora: bool
    tensors: Mapping[str, torch.Tensor]
    base_path: str | None
    base_digest: str | None
    """The digest of the base's weights when the adapter was saved, if Proa saved it."""
    base_dtype: str | None

    @property
    def layer_names(self) -> list[str]:
        return [name.removesuffix(".lora_A.weight") for name in self.tensors if name.endswith(".lora_A.weight")]

    def base_folder(self) -> Path:
        """The folder of the base that the adapter names; relative to the adapter's folder."""
        if self.base_path is None:
            raise AdapterError(
                f"{self.folder / CONFIG_FILE} does not say of which base: base_model_name_or_path is empty"
            )
        base = self.folder / self.base_path
        if not base.is_dir():
            raise AdapterError(
                f"{self.folder / CONFIG_FILE} names the base {self.base_path!r}, and {base} is not a folder"
            )
        return base

    def layout_in(self, model: nn.Module) -> AdapterLayout:
        """Its layout in a model; raises if it does not fit."""
        layers = linear_layers(model)
        if foreign := [name for name in self.layer_names if name not in layers]:
            raise AdapterError(
                f"{self.folder} is an adapter for another base: this model has no linear layer {foreign[0]}"
            )
        names = set(self.layer_names)
        scaling = self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)
        layout = AdapterLayout(tuple(layers[name] for name in layers if name in names), self.rank, scaling)
        try:
            layout.check(self.tensors)
        except AdapterError as error:
            raise AdapterError(f"{self.folder} is an adapter for another base: {error}") from error
        return layout


def is_adapter_folder(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file()


def read_adapter(folder: str | PathLike[str]) -> SavedAdapter:
    """Read a LoRA adapter from a folder that PEFT or `save_adapter` wrote; raises for other kinds of adapters."""
    folder = Path(folder)
    if not is_adapter_folder(folder):
        raise AdapterError(f"{folder} is not an adapter folder: it has no {CONFIG_FILE}")
    config = _json(folder / CONFIG_FILE)
    _refuse_other_kinds(config, folder)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or rank < 1 or alpha <= 0:
        raise AdapterError(f"{folder / CONFIG_FILE}: r and lora_alpha must be above 0, not {rank!r} and {alpha!r}")
    note = _json(folder / NOTE_FILE) if (folder / NOTE_FILE).is_file() else {}
    return SavedAdapter(
        folder=folder,
        rank=rank,
        alpha=alpha,
        rslora=bool(config.get("use_rslora")),
        tensors=_tensors(folder),
        base_path=_text(folder / CONFIG_FILE, config, "base_model_name_or_path") or None,
        base_digest=_text(folder / NOTE_FILE, note, "base_digest"),
        base_dtype=_text(folder / NOTE_FILE, note, "base_dtype"),
    )


def write_adapter(adapter: Mapping[str, torch.Tensor], layout: AdapterLayout, folder: Path) -> None:
    """Write the two files for readers of PEFT's format."""
    tensors = {f"{PREFIX}{name}": tensor.detach().to("cpu").contiguous() for name, tensor in adapter.items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = {
        "peft_type": "LORA", "r": layout.rank, "lora_alpha": layout.scaling * layout.rank, "bias": "none",
        "target_modules": sorted({layer.name.rpartition(".")[2] for layer in layout.layers}),
    }  # fmt: skip
    (folder / CONFIG_FILE).write_text(json.dumps(config), encoding="utf-8")


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise AdapterError(f"{path} is not a JSON object")
    return content


def _text(path: Path, content: Mapping[str, Any], key: str) -> str | None:
    value = content.get(key)
    if value is not None and not isinstance(value, str):
        raise AdapterError(f"{path}: {key} is {value!r:.80}, and must be a text")
    return value


def _refuse_other_kinds(config: Mapping[str, Any], folder: Path) -> None:
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{folder} is an adapter of the kind {config.get('peft_type')!r}; Proa reads LoRA adapters")
    if config.get("init_lora_weights", True) not in (True, False, "gaussian"):
        raise AdapterError(  # PiSSA, OLoRA and the like change the base as well
            f"{folder}: init_lora_weights is {config['init_lora_weights']!r}, which changes the base itself; "
            "have PEFT save it as plain LoRA, with path_initial_model_for_weight_conversion"
        )
    for key, value in config.items():
        if key not in _WITHOUT_EFFECT and value and value != "none":
            raise AdapterError(f"{folder} is more than a plain LoRA adapter: its {key} is {value!r}")


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / WEIGHTS_FILE
    if not path.exists() and (folder / "adapter_model.bin").exists():
        raise AdapterError(
            f"{folder} has its weights in adapter_model.bin, which is pickled: {SAFETENSORS_ALONE}. If you trust it, "
            f"convert it once: peft.PeftModel.from_pretrained(BASE, {str(folder)!r}).save_pretrained(ANOTHER_FOLDER)"
        )
    if why := outside(folder, WEIGHTS_FILE):
        raise AdapterError(f"{path} {why}: an adapter's files must lie in its folder")
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{path} does not load: {error}") from error
    for name in tensors:
        if not name.startswith(PREFIX) or not name.endswith((".lora_A.weight", ".lora_B.weight")):
            raise AdapterError(f"{path} has a tensor {name}, which is not of a plain LoRA adapter")
    return {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
