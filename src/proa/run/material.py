"""What a run works on: its model, its tokenizer and its task, as configured or as given."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..config import RunConfig
from ..config.sections import GIVEN, LoraSection
from ..policy.adapter_folder import base_digest_of, load_adapter, save_adapter
from ..policy.generation_settings import make_savable
from ..policy.lora import LoraSettings, add_lora, has_lora
from ..policy.material import Material
from ..policy.models import ModelError, check_base, check_tokenizer_files, load_model, save_model, weights_of
from ..policy.saved_adapter import read_adapter
from ..record.checkpoint_files import seal
from ..record.durable import Disk, told_with
from ..tasks import Task, load_task
from ..tasks.builtin import BUILTIN, builtin_task
from ..tasks.task import check_columns
from .given import Given

BASE_NAME = "base"
"""Where the model lies that a run begins with, if that is in no other folder."""


def load_material(config: RunConfig, given: Given) -> Material:
    """The model and its tokenizer; what is wrong with them is found before anything is written."""
    section = config.model
    _check_device(section.device)
    model = given.model
    if model is not None and has_lora(model):
        raise ModelError(
            "the model has an adapter already: give the plain model, and the adapter's folder as lora.path"
        )
    if model is None:
        source: Any = section.path if section.path is not None else section.config
        model = load_model(
            source,
            dtype=section.dtype,
            device=section.device,
            seed=config.seed,
            trust_remote_code=section.trust_remote_code,
        )
    else:
        make_savable(model)
    tokenizer = given.tokenizer or _tokenizer(config)
    material = Material(model, tokenizer, _end_ids(config, model, tokenizer))
    _check_fit(material)
    _check_lora(config, model)
    return material


def load_training_task(config: RunConfig, given: Given) -> Task:
    """The prompts to train on."""
    if given.data is not None:
        task = given.data if isinstance(given.data, Task) else load_task(given.data, **_column(config))
    elif config.task.source in BUILTIN:
        counted = {} if config.task.count is None else {"count": config.task.count}
        task = builtin_task(config.task.source, "train", seed=config.seed, **counted)
    else:
        task = load_task(config.task.source, **_column(config))
    task = replace(task, rows=task.rows[: config.task.count])
    check_columns(task)
    return task


def prepare_lora(config: RunConfig, material: Material, folder: Path, *, is_new: bool = True) -> None:
    """Put an adapter on the model, as configured; a base that is in no folder yet is saved beside the run."""
    if config.lora is None:
        return
    if is_new and _base_folder(config) is None and config.algorithm.name != "reward_model":  # which is saved merged
        save_base(material, folder)
    if config.lora.path is not None:
        load_adapter(material.model, config.lora.path)
    else:
        add_lora(material.model, lora_settings(config.lora), seed=config.seed)
    material.base_digest = base_digest_of(material.model)


def save_base(material: Material, folder: Path) -> None:
    """The model that a run begins with, beside the run, on the disk before any checkpoint names it."""
    with told_with(str(folder / BASE_NAME), folder):
        save_model(material.model, material.tokenizer, folder / BASE_NAME)
        seal(Disk(), folder / BASE_NAME)


def lora_settings(section: LoraSection) -> LoraSettings:
    """The settings of a new adapter."""
    targets: Any = section.target_modules
    return LoraSettings(
        rank=section.rank,
        alpha=section.alpha,
        rslora=section.rslora,
        target_modules="all-linear" if targets == "all-linear" else tuple(targets),
    )


def save_policy(config: RunConfig, material: Material, run_folder: Path, into: Path) -> None:
    """The model as a Hugging Face folder, or its adapter as an adapter folder that knows its base."""
    if has_lora(material.model):
        base = _base_folder(config) or os.path.relpath(run_folder / BASE_NAME, into)  # the run's folder may move
        save_adapter(
            material.model, material.tokenizer, into, base_path=base, base_digest=material.base_digest
        )  # fmt: skip
    else:
        save_model(material.model, material.tokenizer, into)


def _base_folder(config: RunConfig) -> str | None:
    """Where the base of an adapter already lies; None if it is in no folder as it is."""
    path = config.model.path
    if path is None or config.has_warm_start or not (Path(path) / "config.json").is_file():
        return None
    return str(Path(path).resolve())


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"model.device {name!r} is none: write cpu, cuda or cuda:0") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise ModelError(f"model.device is {name}, and torch finds {found or 'no'} CUDA device{'s' * (found > 1)} here")


def _check_fit(material: Material) -> None:
    embeddings: Any = material.model.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    largest = max(material.tokenizer.get_vocab().values(), default=0)
    if largest >= rows:
        raise ModelError(
            f"the tokenizer has ids up to {largest}, and the model only {rows} embeddings: another model's?"
        )


def _check_lora(config: RunConfig, model: PreTrainedModel) -> None:
    """What is wrong with it is found before anything is written."""
    if config.lora is None:
        return
    if config.lora.path is not None:
        saved = read_adapter(config.lora.path)
        saved.layout_in(model)
        if not config.has_warm_start:
            check_base(saved, weights_of(model), config.model.dtype)
    else:
        lora_settings(config.lora).layout(model)


def _column(config: RunConfig) -> dict[str, Any]:
    return {"prompt_column": config.task.prompt_column}


def _end_ids(config: RunConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What ends a completion: the tokenizer's end, and what else the model's folder names.

    A model made from a configuration has its architecture's ids, which mean nothing to this tokenizer: they are set
    right, so that its folder is too.
    """
    end: Any = tokenizer.eos_token_id
    if end is None:
        raise ModelError("the tokenizer has no end-of-sequence token: set its eos_token")
    if config.model.config is not None:
        model.config.eos_token_id = end
        if model.generation_config is not None:
            model.generation_config.eos_token_id = end
    named: Any = getattr(model.generation_config, "eos_token_id", None)
    others = named if isinstance(named, list) else [] if named is None else [named]
    return sorted({int(end), *map(int, others)})


def _tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    folder = config.model.tokenizer or (None if config.model.path == GIVEN else config.model.path)
    if folder is None and config.task.source in BUILTIN:
        from ..tasks.builtin.characters import tokenizer

        return tokenizer()
    if folder is None:
        raise ModelError(
            "a model made from configuration has no tokenizer: give model.tokenizer, a folder, or tokenizer= in Python"
        )
    if not Path(folder).is_dir():
        raise ModelError(f"there is no tokenizer folder {folder}")
    return load_tokenizer(folder, config.model.trust_remote_code)


def load_tokenizer(folder: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder, on this machine."""
    check_tokenizer_files(Path(folder))
    try:
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"there is no tokenizer in {folder}: {error}") from error
    return loaded
