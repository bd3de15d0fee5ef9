"""How weights come into vLLM: all of them at once, as tensors from the same process, or as `vllm_server.worker` has it.

These are backends of vLLM's own interface for the weights of a trainer. vLLM casts, splits, fuses and packs them as it
does those of a model's folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "proa"


@dataclass
class NothingToAgreeOn(WeightTransferInitInfo):  # type: ignore[misc]
    """There is no connection to make."""


@dataclass
class GivenWeights(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Tensors by their Hugging Face names, tied ones once."""

    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)


class ReloadingEngine(WeightTransferEngine[Any, Any]):  # type: ignore[misc]
    """Replaces all weights, layer by layer, and leaves nothing that was made of the old ones."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        for head in tied_heads(self.model):
            pack_again(head)

    def shutdown(self) -> None:
        """There is nothing to give back."""


class GivenWeightsEngine(ReloadingEngine):
    """Loads tensors that are given."""

    init_info_cls = NothingToAgreeOn
    update_info_cls = GivenWeights

    def init_transfer_engine(self, init_info: NothingToAgreeOn) -> None:
        """There is nothing to do."""

    def receive_weights(self, update_info: GivenWeights) -> None:
        self.model.load_weights(iter(update_info.weights.items()))


def tied_heads(model: torch.nn.Module) -> Iterator[Any]:
    """Output heads that share the weights of the embeddings."""
    owners: dict[int, torch.nn.Module] = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if weight is None:
            continue
        if isinstance(module, ParallelLMHead) and id(weight) in owners:
            yield module
        owners.setdefault(id(weight), module)


def pack_again(head: Any) -> None:
    """On a CPU a head computes with a packed copy of its weights. vLLM packs what was loaded into a layer itself, and
    into a tied head nothing is: it would go on with the weights before these."""
    head.quant_method.process_weights_after_loading(head)


def register() -> None:
    """Have vLLM know this backend by name."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, GivenWeightsEngine)
