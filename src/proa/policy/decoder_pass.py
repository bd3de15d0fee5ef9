"""A model's hidden states for rows of different lengths, whether or not the model supports padding.

On a GPU rows go through the decoder end to end, without padding (`segments`). Elsewhere they are padded, if the decoder
respects its attention mask. RWKV, CPM-Ant and others ignore the mask, and transformers' eager attention gives NaN for
padding in float64: such a decoder gets the rows of each length separately, without padding. Trials at the lengths of
training decide which of the three is used.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from ..model_shape import context_length
from ..model_trials import trial_length, trial_tokens, uncompiled, vectors_agree
from .segments import make_segments, own_pass, segment_hidden_states

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
    """The decoder's last hidden states, with positions counted over real tokens. Those of padding are meaningless."""
    if takes_segments(decoder, sequences_BS.shape[1]):
        return _pass_end_to_end(decoder, sequences_BS, mask_BS)
    if bool(mask_BS.all()) or _MASKS_ARE_HEEDED.holds(decoder, sequences_BS.shape[1], sequences_BS.device):
        return _one_pass(decoder, sequences_BS, mask_BS)
    return _pass_by_length(decoder, sequences_BS, mask_BS)


def use_segments(decoder: nn.Module, wanted: bool | None) -> None:
    """Set whether rows go through this decoder end to end; None: where that is faster, on a GPU in half precision."""
    cast(Any, decoder).proa_uses_segments = wanted  # an attribute, so that copies of the model have it


def takes_segments(decoder: nn.Module, length: int) -> bool:
    """Whether rows of up to `length` tokens go through the decoder end to end."""
    parameter = next(decoder.parameters())
    wanted: bool | None = getattr(decoder, "proa_uses_segments", None)
    if wanted is None:
        wanted = parameter.is_cuda and parameter.dtype in (torch.bfloat16, torch.float16)
    context = context_length(cast(Any, decoder).config)  # no sequence is longer
    return wanted and _SEGMENTS_ARE_EXACT.holds(decoder, min(length, context or length), parameter.device)


def vocabulary_of(decoder: nn.Module) -> int:
    """The number of the decoder's embeddings."""
    return int(cast(Any, decoder).get_input_embeddings().weight.shape[0])


def _one_pass(decoder: nn.Module, sequences_BS: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
    inputs = {
        "input_ids": sequences_BS.masked_fill(~mask_BS, 0),  # padding may hold invalid token ids
        "attention_mask": mask_BS.long(),
        "position_ids": (mask_BS.long().cumsum(1) - 1).clamp(min=0),
        "use_cache": False,
    }
    if "position_ids" not in inspect.signature(decoder.forward).parameters:
        del inputs["position_ids"]  # such a model derives its positions from the mask
    with own_pass(decoder):
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
    return put_in_place(torch.cat(parts), torch.cat(places), mask_BS.shape)


def _pass_end_to_end(decoder: nn.Module, sequences_BS: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
    real_BS = mask_BS.cpu()
    places_T = real_BS.flatten().nonzero()[:, 0].to(sequences_BS.device, non_blocking=True)
    positions_T = (real_BS.long().cumsum(1) - 1)[real_BS]
    lengths = [length for length in real_BS.sum(-1).tolist() if length]
    segments = make_segments(sequences_BS.flatten()[places_T], positions_T, lengths).to(sequences_BS.device)
    return put_in_place(segment_hidden_states(decoder, segments)[: len(places_T)], places_T, mask_BS.shape)


def put_in_place(hidden_NH: torch.Tensor, places_N: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Hidden states at their places among those of a whole batch, and zeros elsewhere, `(*shape, H)`."""
    hidden_PH = hidden_NH.new_zeros((shape.numel(), hidden_NH.shape[-1]))
    return hidden_PH.index_copy(0, places_N, hidden_NH).view(*shape, -1)


@torch.no_grad()
def _agree_end_to_end(decoder: nn.Module, length: int, device: torch.device) -> bool:
    """One row that fills the batch, and one with padding on both sides."""
    tokens_2S, mask_2S = _trial_rows(decoder, length, device)
    try:
        together_2SH = _pass_end_to_end(decoder, tokens_2S, mask_2S)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return False  # its attention is not transformers' own, or needs more than ours supports
    return vectors_agree(together_2SH[mask_2S], _pass_by_length(decoder, tokens_2S, mask_2S)[mask_2S])


@torch.no_grad()
def _padding_is_ignored(decoder: nn.Module, length: int, device: torch.device) -> bool:
    """One row that fills the batch, and one with padding on both sides."""
    tokens_2S, mask_2S = _trial_rows(decoder, length, device)
    padded_2SH = _one_pass(decoder, tokens_2S, mask_2S)
    return vectors_agree(padded_2SH[mask_2S], _pass_by_length(decoder, tokens_2S, mask_2S)[mask_2S])


def _trial_rows(decoder: nn.Module, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """One row that fills the batch, and one with padding on both sides, like prompts and completions."""
    tokens_2S = trial_tokens(vocabulary_of(decoder), 2, length).to(device)
    left = max(1, length // 4)
    right = length - (length - left) // 3
    mask_2S = torch.ones_like(tokens_2S, dtype=torch.bool)
    mask_2S[1, :left] = mask_2S[1, right:] = False
    return tokens_2S, mask_2S


class _Trials:
    """Results of a trial with a decoder, by length, as a window or a chunk only matters beyond its size."""

    def __init__(self, attempt: Callable[[nn.Module, int, torch.device], bool], complaint: str) -> None:
        self._attempt = attempt
        self._complaint = complaint
        self._found: WeakKeyDictionary[nn.Module, dict[int, bool]] = WeakKeyDictionary()

    def holds(self, decoder: nn.Module, length: int, device: torch.device) -> bool:
        found = self._found.setdefault(decoder, {})
        length = trial_length(decoder.config, length)
        if length not in found:
            with uncompiled(decoder):
                found[length] = self._attempt(decoder, length, device)
            if not found[length] and list(found.values()).count(False) == 1:
                log.warning(self._complaint, type(decoder).__name__)
        return found[length]


_SEGMENTS_ARE_EXACT = _Trials(
    _agree_end_to_end,
    "%s computes other numbers for sequences that lie end to end than for each alone: they are padded, which is right "
    "and slower",
)
_MASKS_ARE_HEEDED = _Trials(
    _padding_is_ignored,
    "%s computes other numbers for a row with padding than without: rows of different lengths go through it one length "
    "at a time, which is right and slower",
)
