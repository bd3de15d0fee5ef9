"""Several samples in one row, none of which attends to another, so that different lengths need no padding.

In a packed row each sample's positions start from 0. From such `position_ids`, without an attention mask or a cache,
transformers (5.17 to 5.22 read) makes the block-diagonal causal mask that the model's attention needs: boolean for
sdpa, additive for eager, offsets for flash, with sliding windows. A four-dimensional mask of our own would only work
for sdpa, and without windows.

Flash attention reads offsets from the positions of a batch of one row only, and takes each of several rows for one
sample, so there all rows are joined. Whether a model follows its positions is found by trials, with several rows of
several samples as long as those of training.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers.utils.generic import is_flash_attention_requested

from ..model_trials import trial_length, trial_tokens, vectors_agree
from .decoder_pass import find_decoder, hidden_states, put_in_place, takes_segments, vocabulary_of
from .log_probs import UnsupportedModelError, token_statistics
from .micro_batches import plan_by_tokens
from .segments import make_segments, own_pass, segment_hidden_states

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Samples end to end in rows, with padding at the end of a row."""

    tokens_RL: torch.Tensor  # noqa: N815 - a shape, not a word
    positions_RL: torch.Tensor  # noqa: N815
    """Positions within the sample, from 0; padding is at 0, so that it attends only to itself."""
    samples_RL: torch.Tensor  # noqa: N815
    """The sample of each token, -1 for padding."""
    learned_RL: torch.Tensor  # noqa: N815
    """The tokens whose log-probability is computed."""

    @property
    def learned_samples_N(self) -> torch.Tensor:  # noqa: N802
        """The sample of each learned token, in the order of `packed_log_probs`."""
        return self.samples_RL[self.learned_RL]

    def take(self, rows: Sequence[int]) -> PackedRows:
        """Some rows, without the columns that are padding in all of them."""
        index = torch.tensor(rows)
        length = int((self.samples_RL[index] >= 0).sum(-1).max())
        return PackedRows(
            *(getattr(self, name)[index, :length] for name in ("tokens_RL", "positions_RL", "samples_RL", "learned_RL"))
        )

    def to(self, device: torch.device | str) -> PackedRows:
        return PackedRows(
            self.tokens_RL.to(device),
            self.positions_RL.to(device),
            self.samples_RL.to(device),
            self.learned_RL.to(device),
        )


def pack_lengths(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Which samples share a row of `capacity` tokens.

    >>> pack_lengths([2, 7, 3, 5], capacity=8)
    [[1], [3, 2], [0]]
    """
    for sample, length in enumerate(lengths):
        if not 1 <= length <= capacity:
            raise ValueError(f"sample {sample} has {length} tokens; a row takes samples of 1 to {capacity}")
    return plan_by_tokens(lengths, capacity)


def pack(samples: Sequence[torch.Tensor], learned: Sequence[torch.Tensor], plan: Sequence[Sequence[int]]) -> PackedRows:
    """Samples, and flags of their learned tokens, laid into rows by the plan of `pack_lengths`."""
    for sample, flags in enumerate(learned):
        if flags[0]:
            raise ValueError(f"the first token of sample {sample} cannot be learned: nothing predicts it")
    width = max(sum(len(samples[sample]) for sample in row) for row in plan)
    tokens_RL = torch.zeros(len(plan), width, dtype=torch.long)
    positions_RL, samples_RL = torch.zeros_like(tokens_RL), torch.full_like(tokens_RL, -1)
    learned_RL = torch.zeros_like(tokens_RL, dtype=torch.bool)
    for row, members in enumerate(plan):
        begin = 0
        for sample in members:
            place = slice(begin, begin + len(samples[sample]))
            tokens_RL[row, place] = samples[sample]
            positions_RL[row, place] = torch.arange(len(samples[sample]))
            samples_RL[row, place] = sample
            learned_RL[row, place] = learned[sample]
            begin = place.stop
    return PackedRows(tokens_RL, positions_RL, samples_RL, learned_RL)


def packed_log_probs(model: PreTrainedModel, packed: PackedRows, *, chunk_tokens: int = 1024) -> torch.Tensor:
    """The log-probability of each learned token within its own sample, (N,), row by row.

    Differentiable, in float32 at least for any dtype of the model; the logits are never held as a whole.
    """
    decoder = find_decoder(model)
    # The last column predicts nothing that is needed.
    inputs = (packed.tokens_RL[:, :-1], packed.positions_RL[:, :-1], packed.samples_RL[:, :-1])
    if takes_segments(decoder, packed.tokens_RL.shape[1]):
        hidden_RLH = _segment_hidden_states(decoder, *inputs)
    else:
        in_one_row = _takes_one_row(model, packed.tokens_RL.shape[1])
        hidden_RLH = _packed_hidden_states(decoder, *inputs, in_one_row=in_one_row)
    learned_RL = packed.learned_RL[:, 1:]
    return token_statistics(
        model, hidden_RLH[learned_RL], packed.tokens_RL[:, 1:][learned_RL], chunk_tokens=chunk_tokens
    )[0]


def check_packing(model: PreTrainedModel, length: int) -> None:
    """Raise for a model that gives samples of up to `length` tokens other hidden states in packed rows than alone."""
    if not takes_segments(find_decoder(model), length):
        _takes_one_row(model, length)


def _segment_hidden_states(
    decoder: nn.Module, tokens_RL: torch.Tensor, positions_RL: torch.Tensor, samples_RL: torch.Tensor
) -> torch.Tensor:
    """All samples of all rows end to end, for a decoder that takes segments."""
    real_RL = (samples_RL >= 0).cpu()
    places_N = real_RL.flatten().nonzero()[:, 0].to(tokens_RL.device)
    positions_N = positions_RL.cpu()[real_RL]
    begins = [*(positions_N == 0).nonzero()[:, 0].tolist(), len(positions_N)]
    lengths = [after - before for before, after in itertools.pairwise(begins)]
    segments = make_segments(tokens_RL.flatten()[places_N], positions_N, lengths).to(tokens_RL.device)
    return put_in_place(segment_hidden_states(decoder, segments)[: len(places_N)], places_N, real_RL.shape)


def _packed_hidden_states(
    decoder: nn.Module,
    tokens_RL: torch.Tensor,
    positions_RL: torch.Tensor,
    samples_RL: torch.Tensor,
    *,
    in_one_row: bool,
) -> torch.Tensor:
    if not in_one_row:
        with own_pass(decoder):
            hidden_RLH: torch.Tensor = decoder(input_ids=tokens_RL, position_ids=positions_RL, use_cache=False)[0]
        return hidden_RLH
    real_RL = samples_RL >= 0
    with own_pass(decoder):
        hidden_NH: torch.Tensor = decoder(
            input_ids=tokens_RL[real_RL][None], position_ids=positions_RL[real_RL][None], use_cache=False
        )[0][0]
    return put_in_place(hidden_NH, real_RL.flatten().nonzero()[:, 0], real_RL.shape)


_tried: WeakKeyDictionary[nn.Module, dict[tuple[str, int], bool]] = WeakKeyDictionary()
"""Whether a model takes its packed rows as one, by its attention and the length that was tried."""


def _takes_one_row(model: PreTrainedModel, length: int) -> bool:
    """Whether packed rows go through the model as one; raises for a model that is wrong either way."""
    decoder, length = find_decoder(model), trial_length(model.config, length)
    known, key = _tried.setdefault(model, {}), (model.config._attn_implementation, length)
    if key in known:
        return known[key]
    if "position_ids" in inspect.signature(decoder.forward).parameters:
        ways = (True,) if is_flash_attention_requested(model.config) else (False, True)
        for in_one_row in ways:
            if _packing_is_exact(decoder, length, in_one_row, model.device):
                known[key] = in_one_row
                return in_one_row
    raise UnsupportedModelError(
        f"{type(model).__name__} cannot be trained on packed rows: it gives samples that share a row other hidden "
        "states than each alone. Set packing to False"
    )


@torch.no_grad()
def _packing_is_exact(decoder: nn.Module, length: int, in_one_row: bool, device: torch.device) -> bool:
    """Two rows of two samples, one of which is nearly as long as its row, and one row with padding."""
    length = max(4, length)
    lengths = [length // 2, length - length // 2 - 1, 2, length - 2]
    tokens = torch.split(trial_tokens(vocabulary_of(decoder), sum(lengths)), lengths)
    nothing = [torch.zeros_like(sample).bool() for sample in tokens]
    packed = pack(tokens, nothing, [[0, 1], [2, 3]]).to(device)
    alone = [sample[None].to(device) for sample in tokens]
    try:
        together_RLH = _packed_hidden_states(
            decoder, packed.tokens_RL, packed.positions_RL, packed.samples_RL, in_one_row=in_one_row
        )
    except (RuntimeError, ValueError, IndexError):  # some have a fixed buffer of masks, too short for one long row
        return False
    return all(
        vectors_agree(
            together_RLH[packed.samples_RL == sample], hidden_states(decoder, row, torch.ones_like(row).bool())[0]
        )
        for sample, row in enumerate(alone)
    )
