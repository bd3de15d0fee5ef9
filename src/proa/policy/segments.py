"""Sequences end to end in one row, each attending only to its own tokens, without padding.

    tokens      p p p a a b b b q q c c          two prompts, p and q; completions a and b of p, and c of q
    queries     └───┘ └─┘ └───┘ └─┘ └─┘          one segment each
    keys        p     p+a  p+b   q   q+c         what each segment attends to: a prompt is computed once

A segment attends causally to its share of `keys`, the last of which are its own tokens; its last token attends to all
of them. Without `keys` each segment is a whole sequence, and attends to itself.

Attention is registered with transformers' interface under a name of ours. On a GPU it is torch's varlen attention;
elsewhere, and for dtypes without that, one call for each segment. Shapes are rounded up to a few sizes, so that
compiled layers meet few of them; the filling is in segments of its own.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from .shared_keys import SharedKeys, gather_keys, make_shared_keys, power_of_2

ATTENTION = "proa_segments"
"""The name of our attention among transformers' implementations."""
_VARLEN: Any = varlen_attn  # on request it returns more than a tensor
_GROUPED_HEADS: Any = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
"""torch 2.11 accepts fewer key heads than query heads; later versions need a flag."""
_SHORTEST = 128
"""Lengths passed to kernels are powers of 2, at least this, as every other number would compile them again."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The tokens to compute, and the keys of each segment; all tensors are on one device."""

    # ruff: noqa: N815 -- tensor shapes are suffixes of fields too
    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    query_starts_N: torch.Tensor
    """The start of each segment, int32, and finally the end of the last."""
    key_starts_N: torch.Tensor
    """The same for keys."""
    longest_query: int
    longest_key: int
    keys: SharedKeys | None = None
    """The token of each key; None if keys are the tokens themselves."""

    def to(self, device: torch.device) -> Segments:
        """The same on a device."""
        return Segments(
            self.tokens_T.to(device),
            self.positions_T.to(device),
            self.query_starts_N.to(device),
            self.key_starts_N.to(device),
            self.longest_query,
            self.longest_key,
            None if self.keys is None else self.keys.to(device),
        )


def make_segments(
    tokens_T: torch.Tensor,
    positions_T: torch.Tensor,
    query_lengths: list[int],
    key_lengths: list[int] | None = None,
    key_places_K: torch.Tensor | None = None,
) -> Segments:
    """Segments of these lengths, filled up to one of a few sizes, on the CPU."""
    longest = max(_SHORTEST, power_of_2(max(query_lengths)))
    filled = bucket_size(len(tokens_T))
    missing = filled - len(tokens_T)
    fillers = [min(longest, missing - first) for first in range(0, missing, longest)]
    queries = query_lengths + fillers
    count = power_of_2(len(queries))
    tokens_T, positions_T = (functional.pad(one_T, (0, filled - len(one_T))) for one_T in (tokens_T, positions_T))
    query_starts_N = _starts(queries, count)
    if key_lengths is None or key_places_K is None:
        return Segments(tokens_T, positions_T, query_starts_N, query_starts_N, longest, longest)
    keys = key_lengths + fillers
    key_places_K = torch.cat((key_places_K, torch.arange(filled - sum(fillers), filled)))
    unused = power_of_2(len(key_places_K)) - len(key_places_K)  # keys after the last segment are in none
    shared_keys = make_shared_keys(queries, keys, functional.pad(key_places_K, (0, unused)))
    longest_key = max(longest, power_of_2(max(key_lengths)))
    return Segments(
        tokens_T, positions_T, query_starts_N, _starts(keys, count), longest, longest_key, shared_keys
    )  # fmt: skip


def bucket_size(count: int) -> int:
    """The next multiple, 4 to 8 times, of a power of 2: at most a quarter more than the number.

    >>> [bucket_size(count) for count in (1, 9, 100, 1000, 24_000)]
    [4, 10, 112, 1024, 24576]
    """
    step = max(1, power_of_2(count) // 8)
    return max(4, -(-count // step) * step)


def segment_hidden_states(decoder: nn.Module, segments: Segments) -> torch.Tensor:
    """The decoder's last hidden state of every token, (T, H); those of filling are meaningless."""
    with own_pass(decoder), attention_as(decoder.config, ATTENTION):
        hidden_1TH: torch.Tensor = decoder(
            input_ids=segments.tokens_T[None],
            position_ids=segments.positions_T[None],
            use_cache=False,
            cu_seq_lens_q=segments.query_starts_N,
            cu_seq_lens_k=segments.key_starts_N,
            max_length_q=segments.longest_query,
            max_length_k=segments.longest_key,
            shared_keys=segments.keys,
        )[0]
    return hidden_1TH[0]


@contextmanager
def own_pass(decoder: nn.Module) -> Iterator[None]:
    """Inside, one pass through a decoder, under a lock, as the attention of its layers is set in its configuration.
    Checkpointed layers have their `training` flag set inside, which transformers requires, if a gradient is
    computed."""
    checkpointed = [
        part for part in decoder.modules() if torch.is_grad_enabled() and getattr(part, "gradient_checkpointing", False)
    ]
    with _locks.setdefault(decoder, threading.RLock()):
        before = [part.training for part in checkpointed]
        for part in checkpointed:
            part.training = True
        try:
            yield
        finally:
            for part, flag in zip(checkpointed, before, strict=True):
                part.training = flag


_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()


@contextmanager
def attention_as(config: Any, name: str) -> Iterator[None]:
    """Inside, layers with this configuration attend by the function of that name."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


class UnknownAttentionError(NotImplementedError):
    """A layer needs a kind of attention that segments do not support."""


def attend(
    _module: nn.Module,
    query_1HTW: torch.Tensor,
    key_1HTW: torch.Tensor,
    value_1HTW: torch.Tensor,
    _mask: torch.Tensor | None,
    *,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    max_length_q: int,
    max_length_k: int,
    shared_keys: SharedKeys | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_more: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for transformers: inputs have heads before tokens, and the result tokens before heads, `(1, T, H,
    W)`."""
    if (sliding_window is not None and sliding_window < max_length_k) or softcap is not None:
        raise UnknownAttentionError("a sliding window or a soft cap")
    query_THW, key_KHW, value_KHW = (one.transpose(1, 2)[0] for one in (query_1HTW, key_1HTW, value_1HTW))
    if shared_keys is not None:
        key_KHW, value_KHW = gather_keys(key_KHW, shared_keys), gather_keys(value_KHW, shared_keys)
    if query_THW.is_cuda and query_THW.dtype in (torch.bfloat16, torch.float16):
        attended_THW = _VARLEN(
            query_THW, key_KHW, value_KHW, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k,
            scale=scaling, window_size=(-1, 0), **_GROUPED_HEADS,
        )  # fmt: skip
    else:
        attended_THW = _attend_one_by_one(query_THW, key_KHW, value_KHW, cu_seq_lens_q, cu_seq_lens_k, scaling)
    return attended_THW[None], None


AttentionInterface.register(ATTENTION, attend)


def _attend_one_by_one(
    query_THW: torch.Tensor,
    key_KHW: torch.Tensor,
    value_KHW: torch.Tensor,
    query_starts_N: torch.Tensor,
    key_starts_N: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    query_lengths, key_lengths = query_starts_N.diff().tolist(), key_starts_N.diff().tolist()
    unused = len(key_KHW) - sum(key_lengths)
    pieces = zip(
        query_THW.transpose(0, 1).split_with_sizes(query_lengths, 1),
        key_KHW.transpose(0, 1).split_with_sizes([*key_lengths, unused], 1),
        value_KHW.transpose(0, 1).split_with_sizes([*key_lengths, unused], 1),
        strict=False,
    )
    attended = [
        functional.scaled_dot_product_attention(
            query_HtW[None], key_HkW[None], value_HkW[None], attn_mask=_causal(query_HtW.shape[1], key_HkW),
            is_causal=query_HtW.shape[1] == key_HkW.shape[1], scale=scaling,
            enable_gqa=query_HtW.shape[0] != key_HkW.shape[0],
        )[0]
        for query_HtW, key_HkW, value_HkW in pieces
        if query_HtW.shape[1]
    ]  # fmt: skip
    return torch.cat(attended, 1).transpose(0, 1)


def _causal(queries: int, key_HkW: torch.Tensor) -> torch.Tensor | None:
    """A mask in which the last query attends to all keys, and each one before to one key less."""
    keys = key_HkW.shape[1]
    if queries == keys:
        return None
    return torch.ones(queries, keys, dtype=torch.bool, device=key_HkW.device).tril(keys - queries)


def _starts(lengths: list[int], count: int) -> torch.Tensor:
    """The starts of `count` segments, and the end of the last; missing ones are empty."""
    missing = [0] * (count - len(lengths))
    return torch.tensor([0, *lengths, *missing]).cumsum(0).to(torch.int32)
