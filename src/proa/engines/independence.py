"""Trials, on the machine that decodes, whether a sequence's bits depend on what is decoded beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..data.sampling import Sampling
from .decoder import Decoder
from .product_shapes import ProductShapes
from .protocol import Request
from .rows import Rows
from .sequences import DecodedSequence, Given

if TYPE_CHECKING:
    from .decoding_rows import DecodingRows
    from .protocol import Progress

LENGTHS = (30, 1, 9, 70, 33, 64, 17, 5, 100, 31, 2, 47)
"""Lengths of the prompts in a trial. The bits of the first are compared: its steps cross the end of a block, and its
neighbours are shorter and longer."""
STEPS = 5


_found: dict[Hashable, bool] = {}
"""Results of trials in this process, by everything that affects products except the numbers in them."""


def is_independent(decoder: Decoder, shapes: ProductShapes) -> bool:
    """Whether a sequence gets the same bits alone and among others, on two layers and the head of this model."""
    layer = decoder.layers[0]
    sizes = [part.weight.shape for part in (layer.qkv, layer.attention_out, layer.mlp_in, layer.mlp_out)]
    key = (
        shapes, *sizes, decoder.head.weight.shape, decoder.query_heads, decoder.key_heads, decoder.embeddings.dtype,
        decoder.device, torch.get_num_threads(),
    )  # fmt: skip
    if key not in _found:
        _found[key] = _try(decoder, shapes)
    return _found[key]


@torch.inference_mode()
def _try(decoder: Decoder, shapes: ProductShapes) -> bool:
    few_layers = replace(decoder, layers=decoder.layers[:2])
    longest = max(LENGTHS) + STEPS
    if few_layers.position_embeddings is not None:
        longest = min(longest, len(few_layers.position_embeddings))
    prompts = [_prompt(few_layers, place, min(length, longest - STEPS)) for place, length in enumerate(LENGTHS)]
    tried = [prompts[0]], [*prompts[1:], prompts[0]], prompts
    logits = [_logits(Rows(few_layers, shapes), together, prompts[0]) for together in tried]
    return all(torch.equal(one, other) for one in logits[1:] for other in logits[:1])


def _prompt(decoder: Decoder, place: int, length: int) -> tuple[int, ...]:
    vocabulary = decoder.embeddings.shape[0]
    return tuple((7919 * place + 104729 * token) % vocabulary for token in range(max(1, length)))


def _logits(rows: Rows, prompts: list[tuple[int, ...]], watched: tuple[int, ...]) -> torch.Tensor:
    """The logits after the watched prompt and after some more tokens, a row each, with all prompts in the cache."""
    start = rows.prefill(prompts)
    sampling = Sampling(max_new_tokens=STEPS)
    for prompt, prefilled in zip(prompts, start, strict=True):
        given = [Given(prompt)]
        rows.place(DecodedSequence(Request(str(prompt[:1]), prompt, 0, sampling), given), prefilled)
    row = prompts.index(watched)
    found = [start[row].logits]
    for step in range(STEPS):
        for sequence in rows.live:
            sequence.next_token = sequence.request.tokens[step % len(sequence.request.tokens)]
        found.append(rows.follow()[row])
    return torch.stack(found)


@torch.inference_mode()
def rows_are_independent(rows: DecodingRows, slots: int, context: int, cache_tokens: int) -> bool:
    """Whether these rows, which must be empty, give a sequence the same bits alone and among others."""
    prompts = [_prompt(rows.decoder, place, min(length, context - STEPS)) for place, length in enumerate(LENGTHS)]
    together = prompts[:slots]
    while len(together) > 1 and rows.tokens_needed([_sequence(prompt) for prompt in together]) > cache_tokens:
        together.pop()
    if rows.tokens_needed([_sequence(together[0])]) > cache_tokens:
        return True  # there is never a second sequence
    first, *others = together
    alone = _decoded(rows, [first])[first]
    return all(_decoded(rows, order)[first] == alone for order in (together, [*others, first]))


def _sequence(prompt: tuple[int, ...]) -> DecodedSequence:
    given = Given(prompt)
    return DecodedSequence(Request("", prompt, 0, Sampling(max_new_tokens=STEPS)), [given], todo=deque([given]))


def _decoded(rows: DecodingRows, prompts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Progress | None]:
    """The tokens decoded after each prompt."""
    sequences = {prompt: _sequence(prompt) for prompt in prompts}
    rows.enter(list(sequences.values()))
    while rows.live:
        rows.step()
        rows.remove([row for row, sequence in enumerate(rows.live) if sequence.finish_reason is not None])
    rows.forget_prompts(lambda _: False)
    return {prompt: sequence.take_progress() for prompt, sequence in sequences.items()}
