"""Whether a server is one that a run can use: its model, its options, and that it takes weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...data.sampling import Sampling
from ...errors import SettingError
from .client import Server, ServerError

if TYPE_CHECKING:
    from ..description import ModelDescription

BACKEND = "proa-files"
START = (
    "start it with VLLM_SERVER_DEV_MODE=1 in its environment, --enable-scale-out, --worker-extension-cls "
    'proa.engines.vllm_server.worker.TakesWeights, --weight-transfer-config \'{"backend": "proa-files"}\' and '
    "--logprobs-mode processed_logprobs (docs/vllm_server.md)"
)
_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
    "tie_word_embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a run needs to know of its server."""

    context_length: int
    logprobs_mode: str
    most_sequences: int
    largest_rank: int
    """Of LoRA adapters that it takes; 0 if it takes none."""


def inspect(server: Server, description: ModelDescription) -> ServerFacts:
    """What the server is; a SettingError if it serves another model, or not as a run needs it."""
    config = _config(server)
    model = config["model_config"]
    backend = (config.get("weight_transfer_config") or {}).get("backend")
    if backend != BACKEND:
        raise SettingError(
            f"the vLLM server at {server.address} has the weight transfer backend {backend or 'none'}, and a run needs "
            f"{BACKEND}: {START}"
        )
    _check_model(server, model, description)
    if config.get("speculative_config"):
        raise SettingError(f"the vLLM server at {server.address} decodes speculatively: start it without that")
    if model["logprobs_mode"] not in ("processed_logprobs", "raw_logprobs"):
        raise SettingError(f"the vLLM server at {server.address} has --logprobs-mode {model['logprobs_mode']}: {START}")
    lora = config.get("lora_config") or {}
    return ServerFacts(
        int(model["max_model_len"]), str(model["logprobs_mode"]), int(config["scheduler_config"]["max_num_seqs"]),
        int(lora.get("max_lora_rank") or 0),
    )  # fmt: skip


def check_sampling(sampling: Sampling, facts: ServerFacts) -> None:
    """Refuse what the server would report other log-probabilities of than the policy's."""
    is_cut = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0 or sampling.repetition_penalty != 1
    if facts.logprobs_mode == "processed_logprobs":
        if is_cut:
            raise SettingError(
                "with --logprobs-mode processed_logprobs a vLLM server reports log-probabilities after top_p, top_k, "
                "min_p and repetition_penalty, and training needs the policy's own: leave these out, or start the "
                "server with --logprobs-mode raw_logprobs and sample at temperature 1"
            )
    elif sampling.temperature not in (0.0, 1.0):
        raise SettingError(
            f"with --logprobs-mode raw_logprobs a vLLM server reports log-probabilities at temperature 1, and "
            f"sampling.temperature is {sampling.temperature}: start it with --logprobs-mode processed_logprobs"
        )


def _config(server: Server) -> Mapping[str, Any]:
    try:
        models = server.ask("GET", "/v1/models")
    except ServerError as error:
        if error.status in (401, 403):
            raise SettingError(
                f"the vLLM server at {server.address} wants another API key: set $PROA_VLLM_API_KEY to that of its "
                "--api-key"
            ) from error
        raise SettingError(f"{server.address} is not a vLLM server that generates text: {error}") from error
    if not isinstance(models, dict):
        raise SettingError(f"{server.address} is not a vLLM server: it does not answer with JSON")
    try:
        config: Mapping[str, Any] = server.ask("GET", "/server_info?config_format=json", seconds=60.0)["vllm_config"]
    except ServerError as error:
        if error.status == 404:
            raise SettingError(
                f"the vLLM server at {server.address} does not let its weights be changed: {START}"
            ) from error
        raise
    return config


def _check_model(server: Server, model: Mapping[str, Any], description: ModelDescription) -> None:
    try:
        theirs = server.ask("POST", "/collective_rpc", {"method": "proa_model"}, seconds=60.0)["results"][0]
    except ServerError as error:
        raise SettingError(f"the vLLM server at {server.address} does not say which model it has: {START}") from error
    ours = description.config
    differences = [
        f"{name} is {theirs[name]} there and {getattr(ours, name)} here"
        for name in _SIZES
        if name in theirs and getattr(ours, name, theirs[name]) != theirs[name]
    ]
    architectures = theirs.get("architectures") or [description.architecture.__name__]
    if description.architecture.__name__ not in architectures:
        differences.insert(0, f"it is {architectures[0]} there and {description.architecture.__name__} here")
    if differences:
        raise SettingError(
            f"the vLLM server at {server.address} has another model ({model.get('model')}): {'; '.join(differences)}"
        )
    dtype = str(description.dtype).removeprefix("torch.")
    if str(model["dtype"]).removeprefix("torch.") != dtype:
        raise SettingError(
            f"the vLLM server at {server.address} computes in {str(model['dtype']).removeprefix('torch.')}, and "
            f"engine.dtype is {dtype}: start it with --dtype {dtype}, or set engine.dtype"
        )
