"""Reward models: a language model's trunk with one score for a whole sequence, in transformers' own classes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel

from ..errors import SettingError
from ..private_files import private_writing
from .decoder_pass import find_decoder, hidden_states
from .hub import local_folder
from .micro_batches import plan_micro_batches
from .models import (
    _DTYPES,
    UNREADABLE,
    ModelError,
    _remove_randomness,
    check_dtype,
    check_weights_files,
    seeded_torch,
    without_progress_bars,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TokenizerMismatchError(SettingError):
    """Two models have different tokenizers."""


_AUTO_MODEL: Any = AutoModelForSequenceClassification  # its methods are not typed


def build_reward_model(model: PreTrainedModel, *, seed: int) -> PreTrainedModel:
    """A reward model that starts from a language model: its trunk, copied, and a head drawn from `seed`.

    The head's numbers are of standard deviation 1/(H + 1), small enough that all scores start near 0, and a loss on
    pairs near log 2.
    """
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError("a reward model starts from whole weights, and this model has an adapter: merge it first")
    config = copy.deepcopy(model.config)
    config.num_labels = 1
    _remove_randomness(config)
    with seeded_torch(seed):
        try:
            reward_model = _AUTO_MODEL.from_config(config, dtype=model.dtype)
        except ValueError as error:
            raise ModelError(f"transformers has no reward model of the kind of {type(model).__name__}") from error
        _checked_head(reward_model)
        width = config.get_text_config().hidden_size
        drawn = torch.randn(1, width, generator=torch.Generator().manual_seed(seed)) / (width + 1)
    reward_model.base_model.load_state_dict(cast(Any, model).base_model.state_dict())
    with torch.no_grad():
        reward_model.score.weight.copy_(drawn)
    return cast(PreTrainedModel, reward_model.to(model.device).eval())


def load_reward_model(
    folder: str | PathLike[str],
    *,
    dtype: str = "float32",
    device: str | torch.device = "cpu",
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """A reward model from a folder of AutoModelForSequenceClassification with one label; its dropout is 0."""
    check_dtype(dtype)
    folder = local_folder(folder, trust_remote_code=trust_remote_code)
    local = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    config = read_reward_model_config(folder, trust_remote_code=trust_remote_code)
    _remove_randomness(config)
    try:
        with seeded_torch(0), without_progress_bars():  # missing weights would be drawn, and raise below
            model, report = _AUTO_MODEL.from_pretrained(
                folder, config=config, dtype=_DTYPES[dtype], output_loading_info=True, use_safetensors=True, **local
            )
    except UNREADABLE as error:
        raise ModelError(f"{folder} does not load as a reward model: {error}") from error
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"{folder} lacks {missing[0]} and is not a reward model: fit_reward_model makes one from a language model"
        )
    _checked_head(model)
    return cast(PreTrainedModel, model.to(device).eval())


def read_reward_model_config(folder: str | PathLike[str], *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """The configuration of a reward model in a folder; raises for faults that show without its weights."""
    folder = local_folder(folder, trust_remote_code=trust_remote_code)
    if not (folder / "config.json").is_file():
        raise ModelError(f"no reward model in {folder}: give a folder that save_reward_model wrote, or one like it")
    check_weights_files(folder, "AutoModelForSequenceClassification")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except UNREADABLE as error:
        raise ModelError(f"{folder} does not load as a reward model: {error}") from error
    # A language model's folder has no labels; loading its weights names the missing head.
    is_language_model = any(name.endswith("ForCausalLM") for name in config.architectures or ())
    if config.num_labels != 1 and not is_language_model:
        raise ModelError(f"{folder} is a classifier of {config.num_labels} labels; a reward model has one")
    config.num_labels = 1
    return config


def save_reward_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | PathLike[str]) -> None:
    """Write a plain AutoModelForSequenceClassification folder, tokenizer included, as its owner's alone.

    transformers reads the score at the last token that is not padding. So if the tokenizer has no padding token, or
    uses the end-of-sequence token, the saved tokenizer gets a new token, and the saved embedding a row.
    """
    if Path(folder).exists() and not Path(folder).is_dir():  # transformers would only log it, and save nothing
        raise ModelError(f"cannot save a reward model in {folder}: it is a file")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError("this reward model has an adapter: merge it before saving")
    tokenizer = _with_padding_token(tokenizer)
    state, config = model.state_dict(), copy.deepcopy(model.config)
    text: Any = config.get_text_config()  # of a multimodal one the part that reads tokens; else the same object
    padding = int(cast(Any, tokenizer.pad_token_id))
    config.pad_token_id = text.pad_token_id = padding
    if padding >= text.vocab_size:
        _add_row(state, model, padding + 1)
        text.vocab_size = padding + 1
    with private_writing(Path(folder)):
        kept, model.config = model.config, config
        try:
            with without_progress_bars():
                model.save_pretrained(str(folder), state_dict=state)
        finally:
            model.config = kept
        tokenizer.save_pretrained(str(folder))


def sequence_scores(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], token_budget: int = 16_384
) -> torch.Tensor:
    """The score at the last token of each sequence, in their order: (N,), in float32 at least, differentiable.

    Sequences go through the model in micro-batches of at most `token_budget` tokens, padding included (0: all at
    once). The id of the padding does not matter.
    """
    lengths = [len(sequence) for sequence in sequences]
    if 0 in lengths:
        raise ValueError(f"sequence {lengths.index(0)} has no tokens to score")
    if not lengths:
        return torch.zeros(0, device=model.device)
    plan = plan_micro_batches(lengths, token_budget)
    scores_N = torch.cat([_scores(model, [sequences[row] for row in rows]) for rows in plan])
    order = torch.tensor([row for rows in plan for row in rows])
    return scores_N[order.argsort().to(scores_N.device)]


def check_same_tokenizer(policy: PreTrainedTokenizerBase, reward: PreTrainedTokenizerBase) -> None:
    """Raise for a reward model whose tokenizer differs from the policy's, except in padding."""
    remedy = (
        "Train the reward model from the policy's own base, or let a reward function read the text with its tokenizer"
    )
    ours, theirs = policy.get_vocab(), reward.get_vocab()
    different = [token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)]
    for token in sorted(different, key=lambda token: (ours.get(token, len(ours)), token)):
        if not all(tokenizer.pad_token == token for tokenizer in (policy, reward) if token in tokenizer.get_vocab()):
            raise TokenizerMismatchError(
                f"the reward model has another tokenizer than the policy: {token!r} is {_number(ours, token)} for the "
                f"policy and {_number(theirs, token)} for the reward model. {remedy}"
            )
    for name in ("bos_token", "eos_token", "unk_token"):
        if getattr(policy, name, None) != getattr(reward, name, None):
            raise TokenizerMismatchError(
                f"the reward model has another {name} than the policy, {getattr(reward, name, None)!r} and not "
                f"{getattr(policy, name, None)!r}. {remedy}"
            )


def _scores(model: PreTrainedModel, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
    longest = max(map(len, sequences))
    tokens_BS = torch.tensor([[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences])
    last_B = torch.tensor([len(sequence) - 1 for sequence in sequences])
    mask_BS = torch.arange(longest) <= last_B[:, None]
    hidden_BSH = hidden_states(find_decoder(model), tokens_BS.to(model.device), mask_BS.to(model.device))
    hidden_BH = hidden_BSH[torch.arange(len(sequences)), last_B]
    scores_B: torch.Tensor = cast(Any, model).score(hidden_BH)[:, 0]
    return scores_B if scores_B.dtype == torch.float64 else scores_B.float()


def _checked_head(model: nn.Module) -> None:
    if not isinstance(getattr(model, "score", None), nn.Module):
        raise ModelError(f"{type(model).__name__} has no head called score: this kind of reward model is not supported")


def _with_padding_token(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        name = "<|padding|>"
        while name in tokenizer.get_vocab():
            name = name.replace("padding", "padding_")
        tokenizer.add_special_tokens({"pad_token": name})
    return tokenizer


def _add_row(state: dict[str, torch.Tensor], model: PreTrainedModel, rows: int) -> None:
    """Extend the embedding with rows of zeros, for padding that is never read."""
    embedding = cast(nn.Embedding, model.get_input_embeddings()).weight
    (name,) = [name for name, parameter in model.named_parameters() if parameter is embedding]
    state[name] = torch.cat([embedding.detach(), embedding.new_zeros(rows - len(embedding), embedding.shape[1])])


def _number(vocabulary: dict[str, int], token: str) -> str:
    return f"token {vocabulary[token]}" if token in vocabulary else "no token"
