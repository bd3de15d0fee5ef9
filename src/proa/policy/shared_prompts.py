"""Completions of one prompt in one row, after the prompt, which is computed once for all of them.

    prompt     p p p      every completion attends to the prompt and itself, to no other;
    first            a a      its positions continue from the prompt's
    second               b b b

Eight completions of 7 tokens after a prompt of 7 are 55 tokens instead of 104: unless prompts are short compared with
their completions, the training step costs about half. With padding and much longer completions it does not pay, as
attention is computed, and masked, between completions too. End to end (`segments`) it always does.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..model_shape import context_length
from ..model_trials import trial_tokens, vectors_agree
from .decoder_pass import find_decoder, hidden_states, takes_segments, vocabulary_of
from .log_probs import ActionStatistics, UnsupportedModelError, checked_mask, scatter_tokens, token_statistics
from .segments import Segments, make_segments, own_pass, segment_hidden_states

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Groups as rows: a prompt, then its completions without their last tokens, which predict nothing."""

    # ruff: noqa: N815 -- tensor shapes are suffixes of fields too
    tokens_GL: torch.Tensor
    positions_GL: torch.Tensor
    allowed_GLL: torch.Tensor
    """The tokens that each token attends to."""
    predictors_N: tuple[torch.Tensor, torch.Tensor]
    """Row and column of the token before each completion token, in the order of the batch's mask."""


def shared_prompt_statistics(
    model: PreTrainedModel,
    sequences_BS: torch.Tensor,
    attention_mask_BS: torch.Tensor,
    actions: int,
    groups_B: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    with_entropy: bool = False,
    entropy_gradient: bool = True,
    value_head: nn.Module | None = None,
) -> ActionStatistics:
    """The same as `action_statistics`, with the prompt of each group computed once. `groups_B` are indices from 0."""
    mask_BS = checked_mask(sequences_BS, attention_mask_BS, actions)
    mask_BA = mask_BS[:, -actions:]
    tokens_N = sequences_BS[:, -actions:][mask_BA]  # waits for the device, so it comes before launching work
    decoder = find_decoder(model)
    if takes_segments(decoder, sequences_BS.shape[1]):
        segments, predictors_N = lay_end_to_end(sequences_BS.cpu(), mask_BS.cpu(), actions, groups_B.cpu())
        device = sequences_BS.device
        hidden_NH = segment_hidden_states(decoder, segments.to(device))[predictors_N.to(device)]
    else:
        rows = lay_out(sequences_BS, mask_BS, actions, groups_B)
        check_shares_prompts(model, rows.tokens_GL.shape[1])
        hidden_NH = _hidden_states(model, rows)[rows.predictors_N]
    statistics_KN = token_statistics(
        model,
        hidden_NH,
        tokens_N,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        with_entropy=with_entropy,
        entropy_gradient=entropy_gradient,
    )
    statistics_KBA = scatter_tokens(statistics_KN, mask_BA)
    values_BA = None if value_head is None else scatter_tokens(value_head(hidden_NH)[None], mask_BA)[0]
    return ActionStatistics(statistics_KBA[0], statistics_KBA[1] if with_entropy else None, values_BA)


def shared_lengths(mask_BS: torch.Tensor, actions: int, groups_B: torch.Tensor) -> list[int]:
    """The number of tokens of each group."""
    inputs_B = (mask_BS[:, -actions:].sum(-1) - 1).clamp(min=0)
    prompts_G = mask_BS[:, :-actions].sum(-1)[_first_rows(groups_B)]
    lengths: list[int] = prompts_G.index_add(0, groups_B, inputs_B).tolist()
    return lengths


def lay_out(sequences_BS: torch.Tensor, mask_BS: torch.Tensor, actions: int, groups_B: torch.Tensor) -> SharedRows:
    """A batch of whole groups as rows; raises if prompts of a group differ."""
    first = sequences_BS.shape[1] - actions
    heads_G = _first_rows(groups_B)
    prompts_GP, prompt_mask_GP = sequences_BS[heads_G, :first], mask_BS[heads_G, :first]
    _check_same_prompts(sequences_BS[:, :first], mask_BS[:, :first], prompts_GP, prompt_mask_GP, groups_B)
    mask_BA = mask_BS[:, first:]
    inputs_BA = torch.cat((mask_BA[:, 1:], torch.zeros_like(mask_BA[:, :1])), dim=1)  # all but each row's last
    prompt_lengths_G = prompt_mask_GP.sum(-1)
    begins_B = prompt_lengths_G[groups_B] + _group_offsets(inputs_BA.sum(-1), groups_B)
    columns_BA = begins_B[:, None] + torch.arange(actions, device=mask_BS.device)
    length = max(shared_lengths(mask_BS, actions, groups_B))

    zeros_GL = sequences_BS.new_zeros((len(heads_G), length))
    tokens_GL, positions_GL, owners_GL = zeros_GL.clone(), zeros_GL.clone(), zeros_GL - 1
    prompt_columns_GP = (prompt_mask_GP.cumsum(-1) - 1)[prompt_mask_GP]
    group_of_prompt_token = prompt_mask_GP.nonzero()[:, 0]
    tokens_GL[group_of_prompt_token, prompt_columns_GP] = prompts_GP[prompt_mask_GP]
    positions_GL[group_of_prompt_token, prompt_columns_GP] = prompt_columns_GP
    owners_GL[group_of_prompt_token, prompt_columns_GP] = 0  # a prompt is everyone's
    row_of_input, place_of_input = inputs_BA.nonzero(as_tuple=True)
    here = groups_B[row_of_input], columns_BA[inputs_BA]
    tokens_GL[here] = sequences_BS[:, first:][inputs_BA]
    positions_GL[here] = prompt_lengths_G[groups_B[row_of_input]] + place_of_input
    owners_GL[here] = row_of_input + 1

    row_of_token, place_of_token = mask_BA.nonzero(as_tuple=True)
    group_of_token = groups_B[row_of_token]
    before = torch.where(
        place_of_token == 0, prompt_lengths_G[group_of_token] - 1, columns_BA[mask_BA] - 1
    )  # fmt: skip
    return SharedRows(tokens_GL, positions_GL, _allowed(owners_GL), (group_of_token, before))


def lay_end_to_end(
    sequences_BS: torch.Tensor, mask_BS: torch.Tensor, actions: int, groups_B: torch.Tensor
) -> tuple[Segments, torch.Tensor]:
    """A batch of whole groups as segments, and the place of the token before each completion token, in the order of the
    batch's mask. Everything is on the CPU."""
    first = sequences_BS.shape[1] - actions
    heads_G = _first_rows(groups_B)
    prompts_GP, prompt_mask_GP = sequences_BS[heads_G, :first], mask_BS[heads_G, :first]
    _check_same_prompts(sequences_BS[:, :first], mask_BS[:, :first], prompts_GP, prompt_mask_GP, groups_B)
    tokens, positions, keys = [], [], []
    predictors = [torch.empty(0, dtype=torch.int64)] * len(sequences_BS)
    place = 0
    for group, (prompt_P, mask_P) in enumerate(zip(prompts_GP, prompt_mask_GP, strict=True)):
        prompt = torch.arange(place, place + int(mask_P.sum()))
        tokens.append(prompt_P[mask_P])
        positions.append(prompt - place)
        keys.append(prompt)
        place += len(prompt)
        for row in (groups_B == group).nonzero()[:, 0].tolist():
            completion = sequences_BS[row, first:][mask_BS[row, first:]]
            inputs = torch.arange(place, place + max(0, len(completion) - 1))  # its last token predicts nothing
            predictors[row] = torch.cat((prompt[-1:], inputs))[: len(completion)]
            if len(inputs):
                tokens.append(completion[:-1])
                positions.append(len(prompt) + inputs - place)
                keys.append(torch.cat((prompt, inputs)))
                place += len(inputs)
    segments = make_segments(
        torch.cat(tokens), torch.cat(positions), list(map(len, tokens)), list(map(len, keys)), torch.cat(keys)
    )
    return segments, torch.cat(predictors)


def _allowed(owners_GL: torch.Tensor) -> torch.Tensor:
    """Causal attention to the prompt and itself; padding attends to itself, as an empty row would give NaN."""
    length = owners_GL.shape[1]
    places = torch.arange(length, device=owners_GL.device)
    seen_GLL = (owners_GL[:, None, :] == 0) | (owners_GL[:, None, :] == owners_GL[:, :, None])
    real_GLL = (owners_GL >= 0)[:, :, None] & (owners_GL >= 0)[:, None, :]
    itself_LL = places[:, None] == places[None, :]
    return (seen_GLL & real_GLL & (places[:, None] >= places[None, :])) | itself_LL


def _first_rows(groups_B: torch.Tensor) -> torch.Tensor:
    """The first row of each group."""
    rows_B = torch.arange(len(groups_B), device=groups_B.device)
    count = int(groups_B.max()) + 1
    return rows_B.new_full((count,), len(groups_B)).scatter_reduce(0, groups_B, rows_B, "amin")


def _group_offsets(counts_B: torch.Tensor, groups_B: torch.Tensor) -> torch.Tensor:
    """For each row, the total of the rows before it in its group."""
    order_B = groups_B.argsort(stable=True)
    sorted_B = counts_B[order_B]
    running_B = sorted_B.cumsum(0) - sorted_B
    group_begins_G = running_B[_first_rows(groups_B[order_B])]
    before_B = torch.empty_like(counts_B)
    before_B[order_B] = running_B - group_begins_G[groups_B[order_B]]
    return before_B


def _check_same_prompts(
    prompts_BP: torch.Tensor,
    mask_BP: torch.Tensor,
    prompts_GP: torch.Tensor,
    mask_GP: torch.Tensor,
    groups_B: torch.Tensor,
) -> None:
    same_BP = (mask_BP == mask_GP[groups_B]) & ((prompts_BP == prompts_GP[groups_B]) | ~mask_BP)
    if not same_BP.all():
        row = int((~same_BP).any(-1).nonzero()[0])
        raise ValueError(f"row {row} has another prompt than its group: prompts can be shared within a group only")


def _hidden_states(model: PreTrainedModel, rows: SharedRows) -> torch.Tensor:
    mask: torch.Tensor = rows.allowed_GLL[:, None]
    if model.config._attn_implementation != "sdpa":  # eager adds its mask
        mask = torch.zeros(mask.shape, dtype=model.dtype, device=mask.device).masked_fill(
            ~mask, torch.finfo(model.dtype).min
        )
    decoder: Any = find_decoder(model)
    try:
        with own_pass(decoder):
            hidden_GLH: torch.Tensor = decoder(
                input_ids=rows.tokens_GL, position_ids=rows.positions_GL, attention_mask=mask, use_cache=False
            )[0]
    except (RuntimeError, IndexError) as error:
        length, context = rows.tokens_GL.shape[1], context_length(model.config)
        if isinstance(error, torch.OutOfMemoryError) or context is None or length <= context:
            raise
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot share prompts here: a prompt with all its completions is {length} tokens, "
            f"and its layers take no more than its context of {context}. Set optimizer.share_prompts to false"
        ) from error
    return hidden_GLH


_longest_tried: WeakKeyDictionary[nn.Module, dict[str, int]] = WeakKeyDictionary()
"""The longest length at which a model passed the trial, by its attention."""


def check_shares_prompts(model: PreTrainedModel, length: int) -> None:
    """Raise for a model that changes a given mask, in rows of `length`: it would be silently wrong.

    A sliding window is recognised by its setting. One by another name, like GPT-Neo's, is found by trials with rows as
    long as those of training: it counts columns, and here the prompt is farther from a completion than alone.
    """
    if takes_segments(find_decoder(model), length):
        return  # their attention is our own
    text = model.config.get_text_config()
    attention = model.config._attn_implementation
    tried = _longest_tried.setdefault(model, {})
    length = max(16, length)
    if length <= tried.get(attention, 0):
        return
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
    windows = getattr(text, "sliding_window", None) and not getattr(text, "layer_types", None)
    takes_positions = "position_ids" in inspect.signature(find_decoder(model).forward).parameters
    known_not_to = kinds or windows or attention not in ("sdpa", "eager") or not takes_positions
    if known_not_to or not _agrees(model, length):
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot share prompts: its attention ({', '.join(sorted(kinds)) or attention}) "
            "takes no mask as it is. Set optimizer.share_prompts to false"
        )
    tried[attention] = length


@torch.no_grad()
def _agrees(model: PreTrainedModel, length: int) -> bool:
    """Try a group of about `length` columns, with a short last completion, and one with a short prompt."""
    decoder = find_decoder(model)
    longest = min(length * 3 // 4, context_length(model.config) or length)
    actions = max(1, longest // 3)
    first = longest - actions
    count = max(2, (length - first) // max(1, actions - 1))
    tokens_BS = trial_tokens(vocabulary_of(decoder), count + 1, longest).to(model.device)
    tokens_BS[:count, :first] = tokens_BS[0, :first]
    mask_BS = torch.ones_like(tokens_BS).bool()
    mask_BS[count - 1, first + (actions + 1) // 2 :] = False
    mask_BS[count, : first // 2] = False
    groups_B = torch.tensor([0] * count + [1], device=model.device)
    rows = lay_out(tokens_BS, mask_BS, actions, groups_B)
    together_NH = _hidden_states(model, rows)[rows.predictors_N]
    counts = mask_BS[:, first:].sum(-1).tolist()
    for tokens_S, mask_S, ours_nH in zip(tokens_BS, mask_BS, torch.split(together_NH, counts), strict=True):
        row = tokens_S[mask_S][None, :-1]
        alone_SH = hidden_states(decoder, row, torch.ones_like(row).bool())[0]
        if not vectors_agree(ours_nH, alone_SH[-len(ours_nH) :]):
            return False
    return True
