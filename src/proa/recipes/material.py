"""What a run works on: its model, its tokenizer and its task, as configured or as given."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..config import RunConfig
from ..policy.adapter_folder import load_adapter, save_adapter
from ..policy.lora import LoraSettings, add_lora, has_lora
from ..policy.models import ModelError, load_model, save_model
from ..tasks import Task, load_task
from ..tasks.builtin import BUILTIN, builtin_task
from .given import Given


@dataclass
class Material:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    end_ids: list[int]


def load_material(config: RunConfig, given: Given) -> Material:
    """The model and its tokenizer; what is wrong with them is found before anything is written."""
    section = config.model
    model = given.model
    if model is None:
        source: Any = section.path if section.path is not None else section.config
        model = load_model(
            source,
            dtype=section.dtype,
            device=section.device,
            seed=config.seed,
            trust_remote_code=section.trust_remote_code,
        )
    tokenizer = given.tokenizer or _tokenizer(config)
    return Material(model, tokenizer, _end_ids(config, model, tokenizer))


def load_training_task(config: RunConfig, given: Given) -> Task:
    """The prompts to train on."""
    if given.data is not None:
        task = given.data if isinstance(given.data, Task) else load_task(given.data, **_column(config))
    elif config.task.source in BUILTIN:
        counted = {} if config.task.count is None else {"count": config.task.count}
        task = builtin_task(config.task.source, "train", seed=config.seed, **counted)
    else:
        task = load_task(config.task.source, **_column(config))
    return replace(task, rows=task.rows[: config.task.count])


def prepare_lora(config: RunConfig, material: Material, folder: Path) -> None:
    """Put an adapter on the model, as configured; a base that is in no folder yet is saved beside the run."""
    if config.lora is None:
        return
    if has_lora(material.model):
        raise ModelError(
            "the model has an adapter already: give the plain model, and the adapter's folder as lora.path"
        )
    if _base_folder(config) is None:
        save_model(material.model, material.tokenizer, folder / "base")
    settings = LoraSettings(
        **config.lora.model_dump(exclude={"path", "target_modules"}),
        target_modules=_targets(config.lora.target_modules),
    )
    if config.lora.path is not None:
        load_adapter(material.model, config.lora.path)
    else:
        add_lora(material.model, settings, seed=config.seed)


def save_policy(config: RunConfig, material: Material, run_folder: Path, into: Path) -> None:
    """The model as a Hugging Face folder, or its adapter as an adapter folder that knows its base."""
    if has_lora(material.model):
        base = _base_folder(config) or os.path.relpath(run_folder / "base", into)  # the run's folder may move
        save_adapter(material.model, material.tokenizer, into, base_path=base)
    else:
        save_model(material.model, material.tokenizer, into)


def _base_folder(config: RunConfig) -> str | None:
    """Where the base of an adapter already lies; None if it is in no folder as it is."""
    path = config.model.path
    if path is None or config.warm_start is not None or not (Path(path) / "config.json").is_file():
        return None
    return str(Path(path).resolve())


def _targets(given: Any) -> Any:
    return given if isinstance(given, str) else tuple(given)


def _column(config: RunConfig) -> dict[str, Any]:
    return {"prompt_column": config.task.prompt_column}


def _end_ids(config: RunConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ends = getattr(model.generation_config, "eos_token_id", None)
    end_ids = ends if isinstance(ends, list) else [tokenizer.eos_token_id if ends is None else ends]
    if config.model.config is not None:
        end_ids = [tokenizer.eos_token_id]
    return [int(end) for end in end_ids]


def _tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    folder = config.model.tokenizer or config.model.path
    if folder is None and config.task.source in BUILTIN:
        from ..tasks.builtin.characters import tokenizer

        return tokenizer()
    if folder is None or not Path(folder).is_dir():
        raise ModelError(
            "a model made from configuration has no tokenizer: give model.tokenizer, a folder, or tokenizer= in Python"
        )
    return load_tokenizer(folder, config.model.trust_remote_code)


def load_tokenizer(folder: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder, on this machine."""
    try:
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"there is no tokenizer in {folder}: {error}") from error
    return loaded
