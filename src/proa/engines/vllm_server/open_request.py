"""A request at a vLLM server until it ends, over as many streams as it takes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ProaError
from ..protocol import Progress, Request
from .client import Stream

_SEEDS = 2**63
"""Of vLLM."""


class OtherTokensError(ProaError):
    """A stream samples other tokens than the one before it did."""


@dataclass(eq=False, slots=True)
class OpenRequest:
    """What was reported of a request, and how far the stream is that it has now."""

    request: Request
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    """That were reported."""
    stream: Stream | None = None
    _seen: int = 0
    """Of these, how many this stream has sampled again, or was given."""
    _given: int = 0
    """Of these, how many this stream was given, because it would have sampled others."""

    def params(self, end_ids: Collection[int]) -> dict[str, Any]:
        """What vLLM is asked for."""
        sampling = self.request.sampling
        return {
            "max_tokens": sampling.max_new_tokens - self._given, "temperature": sampling.temperature,
            "top_p": sampling.top_p, "top_k": sampling.top_k, "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty, "seed": (self.request.seed + self._given) % _SEEDS,
            "stop_token_ids": sorted({*end_ids, *self.request.stops}), "ignore_eos": True, "detokenize": False,
            "logprobs": 0,
        }  # fmt: skip

    @property
    def prompt_sent(self) -> list[int]:
        """The prompt, with what the stream is given of the completion."""
        return [*self.prompt, *self.tokens[: self._given]]

    def close(self) -> None:
        """End its stream, if it has one: the next one samples the same again."""
        if self.stream is not None:
            self.stream.close()
        self.stream, self._seen = None, self._given

    def continue_reported(self) -> None:
        """End its stream: the next one continues after what was reported."""
        self._given = len(self.tokens)
        self.close()

    def take(self, choice: Mapping[str, Any]) -> Progress | None:
        """What a stream's answer adds to what was reported; an OtherTokensError where it contradicts that."""
        tokens = [int(token) for token in choice.get("token_ids") or ()]
        log_probs = [float(one["logprob"]) for one in (choice.get("logprobs") or {}).get("content") or ()]
        if len(tokens) != len(log_probs):
            raise ProaError(f"the vLLM server gave {len(log_probs)} log-probabilities for {len(tokens)} tokens")
        if not all(map(math.isfinite, log_probs)):
            raise FloatingPointError("the engine's logits are not finite: the weights it was given are damaged")
        again = min(len(tokens), len(self.tokens) - self._seen)
        if tokens[:again] != self.tokens[self._seen : self._seen + again]:
            raise OtherTokensError(f"request {self.request.id} gets other tokens than before")
        self._seen += len(tokens)
        self.tokens += tokens[again:]
        reason = choice.get("finish_reason")
        if reason not in (None, "stop", "length"):
            raise ProaError(f"the vLLM server ended request {self.request.id} for a reason of its own: {reason}")
        if reason is None and again == len(tokens):
            return None
        new_tokens, new_log_probs = tuple(tokens[again:]), tuple(log_probs[again:])
        return Progress(self.request.id, new_tokens, new_log_probs, self.request.version, reason)
