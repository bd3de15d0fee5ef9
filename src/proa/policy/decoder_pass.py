"""A model's hidden states for rows of different lengths, whether or not the model can be given padding.

Rows are padded where the decoder heeds its attention mask. RWKV, CPM-Ant and others take a mask and ignore it, and
transformers' eager attention gives NaN for padding in float64: such a decoder gets the rows of each length by
themselves, without padding. Which of the two holds is found by trying, at the lengths that training has.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from ..model_trials import trial_length, trial_tokens, vectors_agree

log = logging.getLogger("proa.policy")


def find_decoder(model: PreTrainedModel) -> nn.Module:
    """The model without its output head."""
    found: Any = cast(Any, model).get_decoder()
    if found is not model and isinstance(found, PreTrainedModel):
        return found
    # transformers finds the model itself for Llama 4's text, and a layer of the head that is called decoder for others.
    trunk: Any = model.base_model
    return cast(nn.Module, trunk if trunk is not model else getattr(model, "model", model))


def hidden_states(decoder: nn.Module, sequences_BS: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
    """The decoder's last hidden states, with positions counted over real tokens. Those of padding mean nothing."""
    if bool(mask_BS.all()) or _heeds_mask(decoder, sequences_BS.shape[1], sequences_BS.device):
        return _one_pass(decoder, sequences_BS, mask_BS)
    return _pass_by_length(decoder, sequences_BS, mask_BS)


def vocabulary_of(decoder: nn.Module) -> int:
    """How many tokens the decoder has embeddings for."""
    return int(cast(Any, decoder).get_input_embeddings().weight.shape[0])


def _one_pass(decoder: nn.Module, sequences_BS: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
    inputs = {
        "input_ids": sequences_BS.masked_fill(~mask_BS, 0),  # garbage there might not even be a token
        "attention_mask": mask_BS.long(),
        "position_ids": (mask_BS.long().cumsum(1) - 1).clamp(min=0),
        "use_cache": False,
    }
    if "position_ids" not in inspect.signature(decoder.forward).parameters:
        del inputs["position_ids"]  # such a model derives its positions from the mask
    hidden_BSH: torch.Tensor = decoder(**inputs)[0]
    return hidden_BSH


def _pass_by_length(decoder: nn.Module, sequences_BS: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
    lengths_B = mask_BS.sum(-1)
    parts, places = [], []
    for length in sorted(set(lengths_B[lengths_B > 0].tolist())):
        mask_bS = mask_BS & (lengths_B == length)[:, None]
        tokens_bT = sequences_BS[mask_bS].view(-1, length)
        parts.append(_one_pass(decoder, tokens_bT, torch.ones_like(tokens_bT, dtype=torch.bool)).flatten(0, 1))
        places.append(mask_bS.flatten().nonzero()[:, 0])
    hidden_NH = torch.cat(parts)
    hidden_PH = hidden_NH.new_zeros((mask_BS.numel(), hidden_NH.shape[-1]))
    return hidden_PH.index_copy(0, torch.cat(places), hidden_NH).view(*mask_BS.shape, -1)


_heeding: WeakKeyDictionary[nn.Module, dict[int, bool]] = WeakKeyDictionary()
"""Whether a decoder heeds its mask, by the length tried: chunked attention may fail beyond its chunk alone."""


def _heeds_mask(decoder: nn.Module, length: int, device: torch.device) -> bool:
    known = _heeding.setdefault(decoder, {})
    length = trial_length(decoder.config, length)
    if length not in known:
        known[length] = _padding_is_ignored(decoder, length, device)
        if not known[length] and list(known.values()).count(False) == 1:
            log.warning(
                "%s computes other numbers for a row with padding than without: rows of different lengths go through "
                "it one length at a time, which is right and slower",
                type(decoder).__name__,
            )
    return known[length]


@torch.no_grad()
def _padding_is_ignored(decoder: nn.Module, length: int, device: torch.device) -> bool:
    """One row that fills the batch, and one with padding on both sides, as prompts and completions have it."""
    tokens_2S = trial_tokens(vocabulary_of(decoder), 2, length).to(device)
    left = max(1, length // 4)
    right = length - (length - left) // 3
    mask_2S = torch.ones_like(tokens_2S, dtype=torch.bool)
    mask_2S[1, :left] = mask_2S[1, right:] = False
    padded_2SH = _one_pass(decoder, tokens_2S, mask_2S)
    return vectors_agree(padded_2SH[mask_2S], _pass_by_length(decoder, tokens_2S, mask_2S)[mask_2S])
