"""What runs within the workers of a vLLM server: how weights come into it, from files.

The server is started with `--worker-extension-cls proa.engines.vllm_server.worker.TakesWeights` and
`--weight-transfer-config '{"backend": "proa-files"}'`: vLLM imports this module in each worker before it makes what
the backend is named for. A file serves any number of workers, each of which takes its own part, and needs no device
that two processes can share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

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


class FilesEngine(WeightTransferEngine[Folder, File]):  # type: ignore[misc]
    """Loads weights from files as vLLM loads those of a model's folder: cast, split, fused and packed."""

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

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: File) -> None:
        if self._folder is None:
            raise ValueError("weights were sent before the folder was named")
        with safe_open(self._folder / Path(update_info.name).name, framework="pt") as file:
            self.model.load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118 - no mapping

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        for head in _tied_heads(self.model):
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        self._folder = None


def _tied_heads(model: torch.nn.Module) -> Iterator[Any]:
    """Output heads that share the weights of the embeddings. On a CPU a head computes with a packed copy, which vLLM
    makes of what is loaded into a layer itself: of a tied one that is nothing, and it would stay as it was."""
    owners: set[int] = set()
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if weight is None:
            continue
        if isinstance(module, ParallelLMHead) and id(weight) in owners:
            yield module
        owners.add(id(weight))


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
