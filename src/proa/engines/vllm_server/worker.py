"""What runs within the workers of a vLLM server: how weights come into it, from files.

The server is started with `--worker-extension-cls proa.engines.vllm_server.worker.TakesWeights` and
`--weight-transfer-config '{"backend": "proa-files"}'`: vLLM imports this module in each worker before it makes what
the backend is named for. A file serves any number of workers, each of which takes its own part, and needs no device
that two processes can share.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from ..vllm.inside.transfer import ReloadingEngine

BACKEND = "proa-files"


@dataclass
class Folder(WeightTransferInitInfo):  # type: ignore[misc]
    """Where files will be: both sides must see it."""

    folder: str
    proof: str
    """What the file `proof.txt` there says."""


@dataclass
class File(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A file of safetensors in that folder, with weights by their Hugging Face names, tied ones once."""

    name: str


class FilesEngine(ReloadingEngine):
    """Loads weights from files."""

    init_info_cls = Folder
    update_info_cls = File
    _folder: Path | None = None

    def init_transfer_engine(self, init_info: Folder) -> None:
        folder = Path(init_info.folder)
        try:
            said = (folder / "proof.txt").read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"the server cannot read {folder}: {error.strerror}") from error
        if said != init_info.proof:
            raise ValueError(f"{folder} is another folder on the server's machine")
        self._folder = folder

    def receive_weights(self, update_info: File) -> None:
        if self._folder is None:
            raise ValueError("weights were sent before the folder was named")
        with safe_open(self._folder / Path(update_info.name).name, framework="pt") as file:
            self.model.load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118 - no mapping


class TakesWeights:
    """Makes vLLM's workers import this module, and says which model a worker has."""

    model_config: Any

    def proa_model(self) -> dict[str, Any]:
        """The model's configuration, as far as it is plain."""
        config = self.model_config.hf_config
        plain = {name: value for name, value in config.to_dict().items() if isinstance(value, str | int | float | list)}
        return {**plain, "architectures": list(getattr(config, "architectures", None) or [])}


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FilesEngine)
