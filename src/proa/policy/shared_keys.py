"""Keys that several segments attend to: copies of tokens, whose gradients are summed in a fixed order.

    tokens    p p a b                    a prompt, and a completion each of a and b
    keys      p p | p p a | p p b        what the segments p, a and b attend to: `places` names each key's token
                ▲      ▲       ▲
                own    └ others of the same token

A token's gradient is the sum of its keys' gradients. torch sums them with `index_put`, which under deterministic
algorithms sorts all keys for every layer: more than half of a training step on a GPU. Here tables are made once for a
batch: each token reads its own key, and the few tokens that others attend to also read those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class SharedKeys(NamedTuple):
    """The token of each key, and the keys of each token; all tensors are on one device."""

    # ruff: noqa: N815 -- tensor shapes are suffixes of fields too
    places_K: torch.Tensor
    """The token of each key."""
    own_T: torch.Tensor
    """The key of each token in its own segment."""
    others_PR: torch.Tensor
    """The keys of tokens in other segments; -1 in unused places."""
    rows_T: torch.Tensor
    """Each token's row in `others_PR`, an empty one if it has no other keys."""

    def to(self, device: torch.device) -> SharedKeys:
        return SharedKeys(*(table.to(device, non_blocking=True) for table in self))


def make_shared_keys(query_lengths: Sequence[int], key_lengths: Sequence[int], places_K: torch.Tensor) -> SharedKeys:
    """The tables of segments with these numbers of tokens and keys, the last of which are the segment's own tokens.
    Keys after the last segment belong to none. The two sizes of `others_PR` are powers of 2."""
    queries_N, keys_N = torch.tensor(query_lengths), torch.tensor(key_lengths)
    tokens, keys = int(queries_N.sum()), int(keys_N.sum())
    shifts_N = keys_N.cumsum(0) - queries_N.cumsum(0)
    own_T = shifts_N.repeat_interleave(queries_N) + torch.arange(tokens)

    is_other_K = torch.ones(keys, dtype=torch.bool)
    is_other_K[own_T] = False
    others = is_other_K.nonzero()[:, 0]
    others = others[places_K[others].argsort(stable=True)]
    shared_P, counts_P = torch.unique_consecutive(places_K[others], return_counts=True)
    row_of_other = torch.arange(len(shared_P)).repeat_interleave(counts_P)
    place_in_row = torch.arange(len(others)) - (counts_P.cumsum(0) - counts_P)[row_of_other]
    most = int(counts_P.max()) if len(counts_P) else 1
    others_PR = torch.full((power_of_2(len(shared_P) + 1), power_of_2(most)), -1)
    others_PR[row_of_other, place_in_row] = others
    rows_T = torch.full((tokens,), len(shared_P))
    rows_T[shared_P] = torch.arange(len(shared_P))
    return SharedKeys(places_K, own_T, others_PR, rows_T)


def gather_keys(tokens_THW: torch.Tensor, keys: SharedKeys) -> torch.Tensor:
    """Copy the tokens' vectors to their keys."""
    gathered_KHW: torch.Tensor = _GatherKeys.apply(tokens_THW, *keys)  # type: ignore[no-untyped-call]
    return gathered_KHW


class _GatherKeys(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens_THW: torch.Tensor,
        places_K: torch.Tensor,
        own_T: torch.Tensor,
        others_PR: torch.Tensor,
        rows_T: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(own_T, others_PR, rows_T)
        return tokens_THW[places_K]

    @staticmethod
    def backward(ctx: Any, gradient_KHW: torch.Tensor) -> Any:
        own_T, others_PR, rows_T = ctx.saved_tensors
        exact = torch.promote_types(gradient_KHW.dtype, torch.float32)
        is_key_PR11 = (others_PR >= 0)[:, :, None, None]
        # Gradients of keys in no segment are uninitialised memory: they are in no table, and never read.
        others_PRHW = gradient_KHW[others_PR.clamp(min=0)].where(is_key_PR11, 0.0)
        gradient_THW = gradient_KHW[own_T].to(exact) + others_PRHW.sum(1, dtype=exact)[rows_T]
        return gradient_THW.to(gradient_KHW.dtype), None, None, None, None


def power_of_2(count: int) -> int:
    """The next power of 2: there are few such sizes, and layers are compiled once for each."""
    return 1 << max(0, count - 1).bit_length()
