"""Loads a run's policy with its tokenizer, and its task, as configured or given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..config import ConfigError, DetachedConfig, RunConfig, SupervisedConfig
from ..config.sections import GIVEN, LoraSection
from ..config.supervised_settings import SFTSettings
from ..data.sampling import Sampling
from ..learning.optimizer import OptimizerSettings
from ..model_shape import context_length
from ..policy.computing import ComputeSettings
from ..policy.generation_settings import make_savable
from ..policy.hub import local_folder
from ..policy.lora import LoraSettings
from ..policy.lora_policy import LoraPolicy, refuse_adapter
from ..policy.models import ModelError, load_model, outline_model
from ..policy.opening import check_vocabulary, end_tokens, load_tokenizer
from ..policy.policy import PlainPolicy, Policy
from ..policy.reward_model import check_same_tokenizer, load_reward_model, read_reward_model_config
from ..policy.trainable import Trainable
from ..policy.trained_reward_model import TrainedRewardModel
from ..record.checkpoint_files import seal
from ..record.durable import Disk, explain_failures
from ..record.run_folder import START_NAME
from ..tasks import Task, load_examples, load_task
from ..tasks.builtin import BUILTIN, builtin_task, builtin_tokenizer
from ..tasks.chat import check_is_chat, with_system_prompt, with_template
from ..tasks.task import check_columns
from .foreseen import NO_TOKENIZER
from .given import Given


def load_policy(config: RunConfig, given: Given, *, outline: bool = False) -> Policy:
    """The policy that a run trains. Raises before anything is written.

    With `outline` it has no weights, for a process that only checks it and leaves the loading to another.
    """
    model, tokenizer, end_ids = _load_parts(config, given, outline)
    trust = config.model.trust_remote_code
    if config.lora is None:
        return PlainPolicy(model, tokenizer, end_ids, trust_remote_code=trust)
    return LoraPolicy(
        model,
        tokenizer,
        end_ids,
        settings=None if config.lora.path is not None else lora_settings(config.lora),
        path=config.lora.path,
        seed=config.seed,
        base_folder=_base_folder(config),
        base_changes=config.has_warm_start or outline,
        trust_remote_code=trust,
    )


def load_trained_reward_model(config: RunConfig, given: Given) -> TrainedRewardModel:
    """The language model that a reward model starts from."""
    model, tokenizer, end_ids = _load_parts(config, given, outline=False)
    lora = config.lora
    return TrainedRewardModel(
        model,
        tokenizer,
        end_ids,
        seed=config.seed,
        lora=None if lora is None or lora.path is not None else lora_settings(lora),
        adapter_path=None if lora is None else lora.path,
        trust_remote_code=config.model.trust_remote_code,
    )


def load_matching_reward_model(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, longest_prompt: int, folder: str
) -> PreTrainedModel:
    """A reward model for the completions of this policy."""
    check_matching_reward_model(config, tokenizer, longest_prompt, folder)
    own = config.model
    return load_reward_model(folder, dtype=own.dtype, device=own.device, trust_remote_code=own.trust_remote_code)


def check_matching_reward_model(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, longest_prompt: int, folder: str
) -> None:
    """Raise if a reward model does not suit the policy, as far as that is known without its weights."""
    trust = config.model.trust_remote_code
    context = context_length(read_reward_model_config(folder, trust_remote_code=trust))
    check_same_tokenizer(tokenizer, load_tokenizer(folder, trust))
    longest = longest_prompt + config.sampling.max_new_tokens
    if context is not None and longest > context:
        raise ModelError(
            f"the reward model in {folder} reads {context} tokens, and a prompt with its completion may have {longest}"
        )


def begin_training(
    trained: Trainable, run_folder: Path, *, resumed: bool, saves: bool = True, keep_start: bool = False
) -> None:
    """Prepare the model for training: load the start of a resumed run, or save a start that is needed again.

    With several trainers one of them `saves`.
    """
    start = run_folder / START_NAME
    if saves and resumed and start.is_dir():
        trained.load_start(start)
    if saves and not resumed and (keep_start or trained.keeps_start):
        with explain_failures(str(start), run_folder):  # on the disk before any checkpoint names it
            trained.save_start(start)
            seal(Disk(), start)
    trained.begin(start)


def load_training_task(config: RunConfig, given: Given) -> Task:
    """The prompts to train on, or the examples to learn from."""
    section = config.task
    if given.data is None and section.source in BUILTIN:
        for key, value in (("columns", section.named_columns), ("split", section.split)):
            if value:
                raise ConfigError(
                    f"task.{key} is for data of your own: leave it out, or name a file in place of the built-in task "
                    f"{section.source}"
                )
        counted = {} if section.count is None else {"count": section.count}
        task = builtin_task(section.source, "train", seed=config.seed, **counted)
    else:
        source = section.source if given.data is None else given.data
        task = load_data(source, config, columns=section.named_columns, split=section.split)
    task = replace(task, rows=task.rows[: section.count])
    check_columns(task)
    if isinstance(config, DetachedConfig):
        task = with_system_prompt(task, config.task.system_prompt)
    has_environment = isinstance(config, DetachedConfig) and config.has_environment  # text is the user's message there
    if (config.task.chat_template is not None or config.task.chat_template_kwargs) and not has_environment:
        check_is_chat(task)
    return task


def load_data(source: Any, config: RunConfig, *, columns: Mapping[str, str], split: str | None) -> Task:
    """The rows of a source, read as the algorithm needs them."""
    if isinstance(config, SupervisedConfig):
        settings = config.algorithm.settings()
        assert isinstance(settings, SFTSettings), "pairs are loaded as pairs"
        return load_examples(source, answer_column=settings.answer_column, columns=columns, split=split)
    return load_task(source, columns=columns, split=split)


def lora_settings(section: LoraSection) -> LoraSettings:
    """The settings of a new adapter."""
    targets: Any = section.target_modules
    return LoraSettings(
        rank=section.rank,
        alpha=section.alpha,
        rslora=section.rslora,
        target_modules="all-linear" if targets == "all-linear" else tuple(targets),
    )


def optimizer_settings(config: RunConfig, **changes: Any) -> OptimizerSettings:
    return OptimizerSettings(**config.optimizer.model_dump(exclude={"token_budget", "share_prompts"}) | changes)


def compute_settings(config: RunConfig) -> ComputeSettings:
    """How the model computes while it is trained; an unresolved `auto` is off."""
    section = config.model
    return ComputeSettings(
        attention=section.attention,
        gradient_checkpointing=section.gradient_checkpointing is True,
        compile=section.compile is True,
    )


def make_sampling(config: DetachedConfig) -> Sampling:
    return Sampling(**config.sampling.model_dump())


def _load_parts(
    config: RunConfig, given: Given, outline: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list[int]]:
    """Model, tokenizer, and the tokens that end a completion."""
    section, model = config.model, given.model
    if not outline:
        check_device(section.device)
    if model is not None:
        refuse_adapter(model)
        make_savable(model)
    else:
        source: Any = section.path if section.path is not None else section.config
        if outline:
            model = outline_model(source, dtype=section.dtype, trust_remote_code=section.trust_remote_code)
        else:
            model = load_model(
                source,
                dtype=section.dtype,
                device=section.device,
                seed=config.seed,
                trust_remote_code=section.trust_remote_code,
            )
    chat = config.task
    tokenizer = with_template(given.tokenizer or _tokenizer(config), chat.chat_template, chat.chat_template_kwargs)
    end_ids = end_tokens(model, tokenizer, is_new=section.config is not None)
    check_vocabulary(model, tokenizer)
    return model, tokenizer, end_ids


def _base_folder(config: RunConfig) -> str | None:
    """The folder that already holds the base of an adapter; None if there is none."""
    if config.model.path is None or config.has_warm_start:
        return None
    path = local_folder(config.model.path, trust_remote_code=config.model.trust_remote_code)
    return str(path.resolve()) if (path / "config.json").is_file() else None


def read_device(name: str, key: str = "model.device") -> torch.device:
    """The device of that name, which need not exist on this machine."""
    try:
        return torch.device(name)
    except RuntimeError:
        raise ModelError(f"unknown {key} {name!r}; use cpu, cuda or cuda:0") from None


def check_device(name: str, key: str = "model.device") -> None:
    """Raise if this machine does not have that device."""
    device = read_device(name, key)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise ModelError(f"{key} is {name}, and torch finds {found or 'no'} CUDA device{'s' * (found > 1)} here")


def _tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    folder = config.model.tokenizer or (None if config.model.path == GIVEN else config.model.path)
    if folder is None and config.task.source in BUILTIN:
        return builtin_tokenizer(config.task.source)
    if folder is None:
        raise ModelError(NO_TOKENIZER)
    if not local_folder(folder, trust_remote_code=config.model.trust_remote_code).is_dir():
        raise ModelError(f"there is no tokenizer folder {folder}")
    return load_tokenizer(folder, config.model.trust_remote_code)
