"""Opens a policy from a model's folder or configuration, and a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..settings import make_settings
from .hub import local_folder
from .lora import LoraSettings
from .lora_policy import LoraPolicy, as_policy
from .models import ModelError, check_tokenizer_files, load_model
from .policy import Policy

ModelSource: TypeAlias = str | Path | Mapping[str, Any] | PreTrainedModel | Policy
"""A Hugging Face folder, a name of the Hub, a configuration (`{"model_type": "llama", ...}`), a model, or a policy."""
TokenizerSource: TypeAlias = str | Path | PreTrainedTokenizerBase
"""A folder with a tokenizer, a name of the Hub, or a tokenizer."""
Lora: TypeAlias = LoraSettings | Mapping[str, Any] | str | Path
"""The settings of a new adapter, or the folder of one that is trained further."""


def open_policy(
    source: ModelSource,
    tokenizer: TokenizerSource | None = None,
    *,
    lora: Lora | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    trust_remote_code: bool = False,
) -> Policy:
    """The policy of a source. Without a `tokenizer` it has that of the model's folder, if there is one.

    `dtype`, `device` and `seed` apply to models that are loaded here, not to given objects.
    """
    if isinstance(source, Policy):
        return source
    is_folder = isinstance(source, str | Path)
    if isinstance(source, str | Path):
        source = local_folder(source, trust_remote_code=trust_remote_code)
    if isinstance(source, PreTrainedModel):
        model = source
    else:
        model = load_model(source, dtype=dtype, device=device, seed=seed, trust_remote_code=trust_remote_code)
    if tokenizer is None and is_folder and (Path(str(source)) / "tokenizer_config.json").is_file():
        tokenizer = str(source)
    if isinstance(tokenizer, str | Path):
        tokenizer = load_tokenizer(str(tokenizer), trust_remote_code)
    if tokenizer is not None:
        check_vocabulary(model, tokenizer)
    ends = [] if tokenizer is None else end_tokens(model, tokenizer, is_new=isinstance(source, Mapping))
    if lora is None:
        policy = as_policy(model)
        return type(policy)(model, tokenizer, ends, trust_remote_code=trust_remote_code)
    return LoraPolicy(
        model,
        tokenizer,
        ends,
        settings=_lora_settings(lora),
        path=str(lora) if isinstance(lora, str | Path) else None,
        seed=seed,
        base_folder=str(Path(str(source)).resolve()) if is_folder else None,
        trust_remote_code=trust_remote_code,
    )


def _lora_settings(lora: Lora) -> LoraSettings | None:
    if isinstance(lora, str | Path):
        return None
    return lora if isinstance(lora, LoraSettings) else make_settings(LoraSettings, lora, "lora")


def load_tokenizer(folder: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder, or of a model of the Hub."""
    local = local_folder(folder, trust_remote_code=trust_remote_code)
    check_tokenizer_files(local)
    try:
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            local, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = str(error).partition("\n")[0].rstrip(" :")
        raise ModelError(
            f"there is no tokenizer in {folder}: name one as model.tokenizer, a folder or a name of the Hub ({why})"
        ) from error
    return loaded


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise for a tokenizer with tokens that the model does not have."""
    embeddings: Any = model.get_input_embeddings()
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= (rows := embeddings.weight.shape[0]):
        raise ModelError(
            f"the tokenizer has ids up to {largest}, and the model only {rows} embeddings: another model's?"
        )


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, is_new: bool) -> list[int]:
    """The tokens that end a completion: the tokenizer's, and others that the model's folder names.

    A new model, made from a configuration, has its architecture's ids, which are replaced by the tokenizer's.
    """
    end: Any = tokenizer.eos_token_id
    if end is None:
        raise ModelError("the tokenizer has no end-of-sequence token: set its eos_token")
    if is_new:
        model.config.eos_token_id = end
        if model.generation_config is not None:
            model.generation_config.eos_token_id = end
    named: Any = getattr(model.generation_config, "eos_token_id", None)
    others = named if isinstance(named, list) else [] if named is None else [named]
    try:
        return sorted({int(end), *map(int, others)})
    except (TypeError, ValueError):
        raise ModelError(
            f"eos_token_id in generation_config.json must be a number or a list of numbers, not {named!r}"
        ) from None
