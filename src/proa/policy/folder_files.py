"""The files that a model's folder may name: plain files inside it, so that a downloaded folder reads no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WEIGHTS_INDEX = ".safetensors.index.json"


def named_weights(folder: Path) -> Iterator[tuple[str, str]]:
    """The weights files that a folder's JSON names, each after the file that names it. Broken JSON is left to
    transformers, whose error is better."""
    indices = [f"model{WEIGHTS_INDEX}"]
    for name in _names(folder, "config.json", "transformers_weights"):
        yield "config.json", name
        if name.endswith(WEIGHTS_INDEX) and outside(folder, name) is None:
            indices.append(name)
    for index in indices:
        for name in _names(folder, index, "weight_map"):
            yield index, name


def named_configurations(folder: Path) -> Iterator[tuple[str, str]]:
    """The files for other versions of transformers that a folder's JSON names, each after the file that names it."""
    for whence, key in (("config.json", "configuration_files"), ("tokenizer_config.json", "fast_tokenizer_files")):
        for name in _names(folder, whence, key):
            yield whence, name


def outside(folder: Path, name: str) -> str | None:
    """Why a file of this name is not a plain file in the folder; None if it is one, or if there is none."""
    if Path(name).name != name or name in ("", ".", "..") or "\0" in name or "\\" in name:
        return "is not the name of a file in it"
    path = folder / name
    if not path.is_symlink():
        return None
    target = path.resolve()
    if target.is_relative_to(folder.resolve()) or _is_hub_cache(target):
        return None
    return f"is a link to {target}, which lies outside it"


def _is_hub_cache(target: Path) -> bool:
    """Whether it is in the Hugging Face cache of files that snapshots link to."""
    return target.parent.name == "blobs" and target.parent.parent.name.startswith("models--")


def _names(folder: Path, name: str, key: str) -> list[str]:
    try:
        named: Any = json.loads((folder / name).read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    if isinstance(named, dict):
        named = list(named.values())
    # One file may hold many tensors.
    return list(dict.fromkeys(map(str, named))) if isinstance(named, list) else [str(named)] if named else []
