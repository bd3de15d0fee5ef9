"""Adapters on disk in PEFT's format: saving, loading to train further, and merging with their base."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from transformers import AutoTokenizer

from ..private_files import private_writing
from .adapter_layout import AdapterError, AdapterLayout
from .lora import (
    LoraSettings,
    adapter_layout,
    adapter_weights,
    add_lora,
    base_weights,
    has_lora,
    lora_settings,
    peft_config,
)
from .models import (
    SavesItself,
    check_base,
    check_tokenizer_files,
    export_model,
    merged_model,
    seeded_torch,
    weights_digest,
)
from .saved_adapter import CONFIG_FILE, NOTE_FILE, PREFIX, WEIGHTS_FILE, read_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def save_adapter(
    model: PreTrainedModel,
    tokenizer: SavesItself | None,
    folder: str | PathLike[str],
    *,
    base_path: str | None,
    base_digest: str | None = None,
) -> None:
    """Write a folder that `peft.PeftModel.from_pretrained(base, folder)` loads, and note the digest of the base; pass
    `base_digest` to save computing it.

    `base_path` is the place of the base, absolute or relative to the adapter's folder; None leaves it open. Like all
    files of a run, the folder is readable by its owner only.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise AdapterError(f"cannot save an adapter in {folder}: it is a file")
    tensors = {PREFIX + name: tensor.cpu().contiguous() for name, tensor in adapter_weights(model).items()}
    config = _config(model, base_path)
    note = {"base_digest": base_digest or digest_base(model), "base_dtype": _dtype_name(model)}
    with private_writing(folder):
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        _write_json(folder / CONFIG_FILE, config)
        _write_json(folder / NOTE_FILE, note)
        if tokenizer is not None:
            tokenizer.save_pretrained(str(folder))


def point_to_base(folder: Path, base_path: str | None) -> None:
    """Change the place of the base in an adapter's folder. The file is replaced, as it may be a link to another's."""
    file = folder / CONFIG_FILE
    config = json.loads(file.read_text(encoding="utf-8"))
    if config["base_model_name_or_path"] != base_path:
        with private_writing(folder):
            file.unlink()
            _write_json(file, config | {"base_model_name_or_path": base_path})


def digest_base(model: PreTrainedModel) -> str:
    """The digest of an adapter's base."""
    return weights_digest(base_weights(model))


def load_adapter(model: PreTrainedModel, folder: str | PathLike[str]) -> None:
    """Load the adapter of a folder into the model, to train it further, adding an adapter if the model has none.

    Everything is checked first: the layers, the rank, the scaling, all shapes, and the base.
    """
    saved = read_adapter(folder)
    layout = saved.layout_in(model)
    if has_lora(model):
        _compare(layout, adapter_layout(model), saved.folder)
    check_base(saved, base_weights(model), _dtype_name(model))
    if not has_lora(model):
        settings = LoraSettings(
            rank=saved.rank, alpha=saved.alpha, rslora=saved.rslora, target_modules=tuple(saved.layer_names)
        )
        add_lora(model, settings, seed=0)
    for name, tensor in adapter_weights(model).items():
        tensor.copy_(saved.tensors[name])


def merge_adapter_folder(
    adapter_folder: str | PathLike[str],
    out_folder: str | PathLike[str],
    *,
    base_folder: str | PathLike[str] | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Write base and adapter as one plain Hugging Face folder, in the dtype that the base was trained in.

    The base is the one that the adapter names unless another folder is given, and it must be the same one.
    The tokenizer is the adapter's, or else the base's.
    """
    saved = read_adapter(adapter_folder)
    base = saved.base_folder() if base_folder is None else Path(base_folder)
    for taken in (saved.folder, base):
        if Path(out_folder).resolve() == taken.resolve():
            raise AdapterError(f"merge into another folder than {taken}: what lies there is still needed")
    with seeded_torch(0):
        model = merged_model(saved, base, saved.base_dtype or "float32", trust_remote_code)
    export_model(model, _find_tokenizer((saved.folder, base), trust_remote_code), out_folder)


def _dtype_name(model: PreTrainedModel) -> str:
    """The name of the base's dtype; transformers takes that of the first parameter, the embeddings."""
    return str(model.dtype).removeprefix("torch.")


def _config(model: PreTrainedModel, base_path: str | None) -> dict[str, Any]:
    settings = lora_settings(model)
    config: Any = peft_config(settings, adapter_layout(model), base_path)
    content: dict[str, Any] = config.to_dict()
    # peft has an unordered set here; the same adapter must give the same file.
    return content | {"target_modules": sorted(settings.target_modules), "inference_mode": True}


def _compare(saved: AdapterLayout, ours: AdapterLayout, folder: Path) -> None:
    if saved.rank != ours.rank:
        raise AdapterError(f"the adapter in {folder} has rank {saved.rank}, and the model's has {ours.rank}")
    if saved.scaling != ours.scaling:
        raise AdapterError(
            f"the adapter in {folder} is scaled by {saved.scaling:g}, and the model's by {ours.scaling:g}: "
            "give lora.alpha and lora.rslora as they were"
        )
    theirs, here = ({layer.name for layer in layout.layers} for layout in (saved, ours))
    if other := sorted(theirs ^ here):
        where = f"in {folder}" if other[0] in theirs else "of the model"
        raise AdapterError(f"lora.target_modules differ: only the adapter {where} has {other[0]}")


def _find_tokenizer(folders: tuple[Path, ...], trust_remote_code: bool) -> Any:
    for folder in folders:
        if (folder / "tokenizer_config.json").is_file() or (folder / "tokenizer.json").is_file():
            check_tokenizer_files(folder)
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    return None


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
