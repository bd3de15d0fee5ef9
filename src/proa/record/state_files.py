"""A nested tree of plain values and tensors as a folder, and back: `state.json` and `tensors.safetensors`."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .durable import Disk
from .state_tree import Decoder, Encoder, StateError

if TYPE_CHECKING:
    import torch

__all__ = ["StateError", "read_state", "write_state"]

FORMAT = 1
STATE_NAME = "state.json"
TENSORS_NAME = "tensors.safetensors"


def write_state(folder: Path, tree: Mapping[str, Any], *, disk: Disk | None = None) -> None:
    """Write a tree to a folder, creating it if needed. A tree that cannot be saved is refused first.

    Text is written as it is, including secrets: a resumed run must get back exactly what was saved. The folder is
    private to its owner.
    """
    disk = disk or Disk()
    encoder = Encoder()
    content = {"format": FORMAT, "tree": encoder.encode(dict(tree), "state")}
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    if not folder.exists():
        disk.make_folder(folder)
    if encoder.tensors:
        from safetensors.torch import save_file

        disk.call(lambda path: save_file(encoder.tensors, path), folder / TENSORS_NAME)
    disk.write_file(folder / STATE_NAME, text.encode("ascii"))


def read_state(folder: Path) -> dict[str, Any]:
    """The tree that was written to a folder; its tensors are on the CPU and own their memory."""
    path = folder / STATE_NAME
    try:
        content = json.loads(b"".join(Disk().chunks(path)))
    except FileNotFoundError:
        raise StateError(f"{folder} has no saved state: there is no {STATE_NAME}") from None
    except (ValueError, RecursionError, OSError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    _check_format(path, content)
    decoder = Decoder(_read_tensors(folder / TENSORS_NAME))
    try:
        tree = decoder.decode(content.get("tree"))
    except (KeyError, ValueError, TypeError, AttributeError, struct.error, RuntimeError, RecursionError) as error:
        raise StateError(f"{path} does not describe a state: {error}") from error
    if decoder.unnamed:
        raise StateError(f"{folder / TENSORS_NAME} holds tensors that {STATE_NAME} does not name: {decoder.unnamed}")
    if not isinstance(tree, dict):
        raise StateError(f"{path} does not describe a state: its tree is a {type(tree).__name__}")
    return tree


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    if path.is_symlink():
        raise StateError(f"{path} is a link, and links are not followed in a run's folder")
    if not path.exists():
        return {}
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            # Cloned: the tensors are views of the file, which may be removed.
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error


def _check_format(path: Path, content: Any) -> None:
    form = content.get("format") if isinstance(content, dict) else None
    if type(form) is not int or form < 1:
        raise StateError(f"{path} is not a saved state: it has no format")
    if form > FORMAT:
        raise StateError(
            f"{path} was written by a newer version of Proa (format {form}, and this one reads up to {FORMAT}): "
            "resume with that version, or a newer one"
        )
