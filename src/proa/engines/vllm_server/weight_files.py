"""Weights on their way to a vLLM server: a file that both sides see, and the four phases of vLLM's own interface."""

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

import torch
from safetensors.torch import save_file

from ...data.versions import NO_VERSION
from ...errors import ProaError, SettingError
from ...private_files import private_writing
from .client import Server, ServerError
from .file_lock import FileLock

log = logging.getLogger("proa.vllm_server")

_PREFIX = "proa-weights-"
_IN_USE = "in_use"
_YOUNG_SECONDS = 60.0
"""A folder of this age may belong to an engine that has not taken its lock yet."""


class WeightFiles:
    """The newest weights, kept for a server that is started again."""

    def __init__(self, server: Server, folder: str, dtype: torch.dtype, patience: float) -> None:
        self._server = server
        self._dtype = dtype
        self._patience = patience
        self._name = secrets.token_hex(4)
        self._version = NO_VERSION
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
        """What the server calls these weights: no other engine's have that name."""
        return f"proa-{self._name}-{self._version}"

    def write(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Replace the file by one of these weights, in the server's dtype."""
        for old in self._folder.glob("*.safetensors"):
            old.unlink()
        stored = {
            name: weight.detach().to("cpu", self._dtype if weight.is_floating_point() else weight.dtype).contiguous()
            for name, weight in weights.items()
        }
        self._version = version
        with private_writing(self._folder):
            save_file(stored, self._file)

    @property
    def _file(self) -> Path:
        return self._folder / f"{self._version}.safetensors"

    def push_if_needed(self) -> None:
        """Have the server compute with these weights, if it does not."""
        if self._server.ask("GET", "/weight_info")["weight_version"] == self.tag:
            return
        try:
            self._push()
        except ServerError as error:
            if error.status < 500 or not self._server.is_there():
                raise
            raise ProaError(
                f"the vLLM server at {self._server.address} does not take the weights of version {self._version}: "
                f"{error}"
            ) from error

    def _push(self) -> None:
        """vLLM's four phases; then what it has cached of other weights is dropped."""
        ask, seconds = self._server.ask, self._patience
        proof = secrets.token_hex(8)
        (self._folder / "proof.txt").write_text(proof, encoding="utf-8")
        folder = {"folder": str(self._folder), "proof": proof}
        ask("POST", "/init_weight_transfer_engine", {"init_info": folder}, seconds=seconds)
        ask("POST", "/start_weight_update", {}, seconds=seconds)
        ask("POST", "/update_weights", {"update_info": {"name": self._file.name}}, seconds=seconds)
        ask("POST", "/finish_weight_update", {"weight_version": self.tag}, seconds=seconds)
        if not ask("POST", "/reset_prefix_cache", {}, seconds=seconds)["success"]:
            log.warning("the vLLM server keeps keys and values of earlier weights: it does not use them")


def _remove_abandoned(parent: Path) -> None:
    """Remove folders of engines whose process was killed: weights may be many gigabytes."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or gone by now
            lock = FileLock(folder / _IN_USE)
            if time.time() - folder.stat().st_mtime > _YOUNG_SECONDS and lock.try_take():
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()
