"""Weights on their way to a vLLM server: files that both sides see, and vLLM's own routes that have it read them."""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from ...errors import ProaError, SettingError
from ...policy.adapter_layout import AdaptedWeights
from ...policy.saved_adapter import write_adapter
from ...private_files import private_writing
from ..weights import WeightPlaces
from .client import Server, ServerError
from .file_lock import FileLock

log = logging.getLogger("proa.vllm_server")

_PREFIX = "proa-weights-"
_IN_USE = "in_use"
_YOUNG_SECONDS = 60.0
"""A folder of this age may belong to an engine that has not taken its lock yet."""


class WeightFiles:
    """The newest weights, kept for a server that is started again: whole, or an adapter over a base that stays."""

    def __init__(self, server: Server, folder: str, places: WeightPlaces, dtype: torch.dtype, patience: float) -> None:
        self._server = server
        self._places = places
        self._dtype = dtype
        self._patience = patience
        self._name = secrets.token_hex(4)
        self._pushes = 0
        self._base: Mapping[str, torch.Tensor] | None = None
        self._adapter = ""
        self._adapters = 0
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder or None))
        except OSError as error:
            raise SettingError(f"engine.params.folder {folder!r} cannot be written to: {error.strerror}") from error
        self._in_use = FileLock(self._folder / _IN_USE)
        self._in_use.try_take()
        _remove_abandoned(self._folder.parent)
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def tag(self) -> str:
        """What the server calls these weights, without an adapter: no other engine's have that name."""
        return f"proa-{self._name}-{self._pushes}"

    @property
    def of_a_request(self) -> dict[str, str]:
        """What a request says so that these weights answer it, and nothing that others have cached is used."""
        return {"cache_salt": self._adapter or self.tag, **({"model": self._adapter} if self._adapter else {})}

    # -- files ---------------------------------------------------------------------------------------

    def write(self, weights: Mapping[str, torch.Tensor], version: int, *, largest_rank: int) -> None:
        """Keep these weights in place of those before. An adapter is kept apart from its base where the server takes
        adapters of that rank. After a ValueError those before are still there, after a ProaError none."""
        try:
            if isinstance(weights, AdaptedWeights) and _fits(weights, largest_rank):
                if weights.base is not self._base:
                    self._write_whole(self._places.matched(weights.base))
                    self._base = weights.base
                self._write_adapter(weights, version)
            else:
                self._write_whole(self._places.matched(weights))
        except (OSError, SafetensorError) as error:
            raise ProaError(
                f"the weights of version {version} cannot be written to {self._folder}: {error}. Make room there, or "
                "name another folder in engine.params.folder"
            ) from error

    def _write_whole(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._file.unlink(missing_ok=True)
        self._pushes += 1
        self._base, self._adapter = None, ""
        stored = {
            name: weight.detach().to("cpu", self._dtype if weight.is_floating_point() else weight.dtype).contiguous()
            for name, weight in weights.items()
        }
        with private_writing(self._folder):
            save_file(stored, self._file)

    @property
    def _file(self) -> Path:
        return self._folder / f"{self._pushes}.safetensors"

    def _write_adapter(self, weights: AdaptedWeights, version: int) -> None:
        """A name is used once, though a version may come again: vLLM keeps what it computed with an adapter under its
        name."""
        self._adapters += 1
        name = f"{self.tag}-{self._adapters}-adapter-{version}"
        folder = self._folder / name
        with private_writing(self._folder):
            folder.mkdir()
            write_adapter(weights.adapter, weights.layout, folder)
        self._adapter = name

    # -- the server ----------------------------------------------------------------------------------

    def push_if_needed(self) -> None:
        """Have the server compute with these weights, if it does not."""
        try:
            is_new = self._server.ask("GET", "/weight_info")["weight_version"] != self.tag
            if is_new:
                self._push()
            if self._adapter:
                self._use_adapter(again=is_new)
        except ServerError as error:
            if error.status < 500 or not self._server.is_there():
                raise
            raise ProaError(f"the vLLM server at {self._server.address} does not take the weights: {error}") from error

    def _push(self) -> None:
        """vLLM's four phases; then what it has cached of other weights is dropped."""
        proof = secrets.token_hex(8)
        (self._folder / "proof.txt").write_text(proof, encoding="utf-8")
        self._post("/init_weight_transfer_engine", {"init_info": {"folder": str(self._folder), "proof": proof}})
        self._post("/start_weight_update", {})
        self._post("/update_weights", {"update_info": {"name": self._file.name}})
        self._post("/finish_weight_update", {"weight_version": self.tag})
        if not self._post("/reset_prefix_cache", {})["success"]:
            log.warning("the vLLM server keeps keys and values of earlier weights: it does not use them")

    def _use_adapter(self, *, again: bool) -> None:
        """Have the server load the adapter, and drop those of this engine that are older."""
        loaded = [one["id"] for one in self._server.ask("GET", "/v1/models")["data"]]
        for name in loaded:
            if name.startswith(f"proa-{self._name}-") and (again or name != self._adapter):
                self._post("/v1/unload_lora_adapter", {"lora_name": name})
                if name != self._adapter:
                    shutil.rmtree(self._folder / name, ignore_errors=True)
        if self._adapter and (again or self._adapter not in loaded):
            content = {"lora_name": self._adapter, "lora_path": str(self._folder / self._adapter)}
            try:
                self._post("/v1/load_lora_adapter", content)
            except ServerError as error:
                if error.status == 404 and "dapter" not in error.message:
                    raise SettingError(
                        f"the vLLM server at {self._server.address} has --enable-lora and does not let adapters be "
                        "changed: start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment too"
                    ) from error
                raise ProaError(
                    f"the vLLM server at {self._server.address} does not take the adapter: {error}"
                ) from error

    def _post(self, path: str, content: Mapping[str, Any]) -> Any:
        return self._server.ask("POST", path, content, seconds=self._patience)


def _fits(weights: AdaptedWeights, largest_rank: int) -> bool:
    """Whether vLLM can add this adapter up itself; of GPT-2's transposed layers it cannot."""
    return weights.layout.rank <= largest_rank and not any(layer.transposed for layer in weights.layout.layers)


def _remove_abandoned(parent: Path) -> None:
    """Remove folders of engines whose process was killed: weights may be many gigabytes."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or gone by now
            lock = FileLock(folder / _IN_USE)
            if time.time() - folder.stat().st_mtime > _YOUNG_SECONDS and lock.try_take():
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()
