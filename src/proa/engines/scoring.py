"""What a model thinks of given tokens, computed step by step, as in decoding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..data.sampling import Sampling
from .protocol import Request
from .rows import Rows
from .sequences import DecodedSequence, Given


def score_by_steps(rows: Rows, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Of each sequence's tokens but the first: the log-probability at temperature 1. The rows must be empty."""
    scored: dict[DecodedSequence, list[float]] = {}
    for place, tokens in enumerate(sequences):
        first, rest = tuple(tokens[:1]), tuple(tokens[1:])
        sequence = DecodedSequence(
            Request(str(place), first, 0, Sampling(max_new_tokens=max(1, len(rest)))), [Given(first)]
        )
        sequence.forced.extend(rest)
        scored[sequence] = []
    starts = rows.prefill([sequence.request.tokens for sequence in scored])
    for sequence, start in zip(scored, starts, strict=True):
        rows.place(sequence, start)
    logits_BV = torch.stack([start.logits for start in starts])
    while rows.live:
        log_probs_BV = logits_BV[: len(rows.live)].float().log_softmax(-1)
        for row, sequence in enumerate(rows.live):
            if sequence.forced:
                sequence.next_token = sequence.forced.popleft()
                scored[sequence].append(float(log_probs_BV[row, sequence.next_token]))
            else:
                sequence.finish_reason = "length"
        rows.remove([row for row, sequence in enumerate(rows.live) if sequence.finish_reason is not None])
        if rows.live:
            logits_BV = rows.follow()
    return [torch.tensor(log_probs, dtype=torch.float32) for log_probs in scored.values()]
