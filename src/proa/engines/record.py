"""The tokens of one call as they are sampled, and the completions that they make in the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..data.sampling import Completion
from .protocol import Request

_EMPTY = -1


class Record:
    """Tokens and log-probabilities of all samples of a call, one row of `max_new_tokens` places for each.

    A place is addressed by its cursor: `sample * max_new_tokens + position`.
    """

    def __init__(self, samples: int, max_new_tokens: int, device: torch.device) -> None:
        self._shape = (samples, max_new_tokens)
        self._tokens = torch.full((samples * max_new_tokens,), _EMPTY, dtype=torch.int64, device=device)
        self._log_probs = torch.zeros(samples * max_new_tokens, dtype=torch.float32, device=device)

    def write(self, cursors_B: torch.Tensor, tokens_B: torch.Tensor, log_probs_B: torch.Tensor) -> None:
        self._tokens.index_copy_(0, cursors_B, tokens_B)
        self._log_probs.index_copy_(0, cursors_B, log_probs_B)

    def completions(self, requests: Sequence[Request], end_ids: frozenset[int]) -> list[list[Completion]]:
        """What was sampled, by request. Tensors own their memory: one sent away does not carry all others."""
        tokens_SN, log_probs_SN = self._tokens.cpu().view(self._shape), self._log_probs.cpu().view(self._shape)
        if not bool(log_probs_SN.isfinite().all()):
            raise FloatingPointError("the engine's logits are not finite: the weights it was given are damaged")
        rows = iter(zip(tokens_SN, log_probs_SN, (tokens_SN != _EMPTY).sum(-1).tolist(), strict=True))
        return [[_completion(*next(rows), end_ids) for _ in request.seeds] for request in requests]


def _completion(tokens_N: torch.Tensor, log_probs_N: torch.Tensor, length: int, end_ids: frozenset[int]) -> Completion:
    tokens = tokens_N[:length].clone()
    return Completion(tokens, log_probs_N[:length].clone(), "stop" if int(tokens[-1]) in end_ids else "length")
