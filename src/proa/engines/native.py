"""The native engine: our own decode loop over Hugging Face weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import torch

from .cache import ColumnCache
from .choice import choose
from .decoder import Decoder, PrefilledPrompt
from .protocol import Request, check_call
from .record import Record
from .shapes import build_decoder
from .streams import uniforms

if TYPE_CHECKING:
    from ..data.sampling import Completion, Sampling

_PREFILL_TOKENS = 8192
"""The most prompt tokens, with padding, of one pass: it bounds the memory of activations."""


class NativeEngine:
    """Decodes Llama, SmolLM, Mistral, Qwen2, Qwen3 and GPT-2 shapes.

    A prompt is computed once for all its samples. As sequences end, others take their slots, so that no
    step is spent on a finished one.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        end_ids: Collection[int],
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        slots: int = 0,
    ) -> None:
        config: Any = model.config
        self._decoder, self._places = build_decoder(model, dtype, device)
        self._context_length = int(config.max_position_embeddings)
        self._end_ids = frozenset(end_ids)
        vocabulary = self._decoder.embeddings.shape[0]
        ending = [token in self._end_ids for token in range(vocabulary)]
        self._ending_V = torch.tensor(ending, device=self._decoder.device)
        self._slots = slots

    @property
    def context_length(self) -> int:
        return self._context_length

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        vocabulary = self._decoder.embeddings.shape[0]
        check_call(requests, sampling, context_length=self.context_length, vocabulary=vocabulary)
        samples = sum(len(request.seeds) for request in requests)
        record = Record(samples, sampling.max_new_tokens, self._decoder.device)
        if samples:
            slots = min(self._slots or samples, samples)
            _Call(self._decoder, requests, sampling, slots, self._ending_V, record).run()
        return record.completions(requests, self._end_ids)

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._places.fill(weights)


@dataclass(slots=True)
class _Rows:
    """The sequences under decoding: where each writes next, where it must stop, and its place in the text."""

    cursors: torch.Tensor
    last_cursors: torch.Tensor
    positions: torch.Tensor

    def select(self, order: torch.Tensor) -> _Rows:
        return _Rows(self.cursors[order], self.last_cursors[order], self.positions[order])

    def joined(self, others: _Rows) -> _Rows:
        return _Rows(
            torch.cat((self.cursors, others.cursors)),
            torch.cat((self.last_cursors, others.last_cursors)),
            torch.cat((self.positions, others.positions)),
        )


class _Call:
    """One call of the engine: sequences wait, enter a slot, are decoded together, and leave when they end."""

    def __init__(
        self,
        decoder: Decoder,
        requests: Sequence[Request],
        sampling: Sampling,
        slots: int,
        ending_V: torch.Tensor,
        record: Record,
    ) -> None:
        self._decoder = decoder
        self._requests = requests
        self._sampling = sampling
        self._ending_V = ending_V
        self._record = record
        seeds = [seed for request in requests for seed in request.seeds]
        self._uniforms = uniforms(seeds, sampling.max_new_tokens).flatten().to(decoder.device)
        self._waiting = deque(enumerate(index for index, request in enumerate(requests) for _ in request.seeds))
        self._prefilled: dict[int, PrefilledPrompt] = {}
        longest_prompt = max(len(request.tokens) for request in requests if request.seeds)
        self._rotation = decoder.rotation(longest_prompt + sampling.max_new_tokens)
        self._cache = ColumnCache(
            decoder.cache_shape,
            rows=slots,
            longest_prompt=longest_prompt,
            new_tokens=sampling.max_new_tokens,
            refills=slots < len(seeds),
        )
        nothing = torch.empty(0, dtype=torch.int64, device=decoder.device)
        self._rows = _Rows(nothing, nothing, nothing)

    @torch.inference_mode()
    def run(self) -> None:
        logits_BV = self._enter(None)
        while logits_BV is not None:
            tokens_B = self._retire(self._sample(logits_BV))
            logits_BV = self._step(tokens_B)
            logits_BV = self._enter(logits_BV)

    def _sample(self, logits_BV: torch.Tensor) -> torch.Tensor:
        cursors_B = self._rows.cursors
        tokens_B, log_probs_B = choose(logits_BV, self._uniforms[cursors_B], self._sampling)
        self._record.write(cursors_B, tokens_B, log_probs_B)
        return tokens_B

    def _retire(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """Drop the rows that have ended; the tokens of those that go on, in their new order."""
        ended_B = self._ending_V[tokens_B] | (self._rows.cursors == self._rows.last_cursors)
        if not bool(ended_B.any()):
            return tokens_B
        order = _close_gaps(ended_B.tolist())
        self._cache.keep(order)
        order_B = torch.tensor(order, dtype=torch.int64, device=tokens_B.device)
        self._rows = self._rows.select(order_B)
        return tokens_B[order_B]

    def _step(self, tokens_B: torch.Tensor) -> torch.Tensor | None:
        """Logits after the tokens just sampled; None if no row is left."""
        if not len(tokens_B):
            return None
        logits_BV = self._decoder.step(tokens_B, self._rows.positions, self._rotation, self._cache)
        self._rows.cursors += 1
        self._rows.positions += 1
        return logits_BV

    def _enter(self, logits_BV: torch.Tensor | None) -> torch.Tensor | None:
        """Fill the free slots from those that wait; the logits of all rows, the new ones last."""
        entering = list(islice(self._waiting, self._cache.free))
        if not entering:
            return logits_BV
        for _ in entering:
            self._waiting.popleft()
        self._prefill({index for _, index in entering})
        logits = [] if logits_BV is None else [logits_BV]
        for index, samples in groupby(entering, key=lambda sample: sample[1]):
            count = len(list(samples))
            prompt = self._prefilled[index]
            self._cache.enter(prompt.keys, prompt.values, count)
            logits.append(prompt.logits.expand(count, -1))
        self._rows = self._rows.joined(self._new_rows(entering))
        still_waiting = self._waiting[0][1] if self._waiting else len(self._requests)
        self._prefilled = {index: prompt for index, prompt in self._prefilled.items() if index >= still_waiting}
        return torch.cat(logits)

    def _prefill(self, indices: set[int]) -> None:
        for chunk in _chunks(sorted(indices - self._prefilled.keys()), self._requests):
            prompts = self._decoder.prefill([self._requests[index].tokens for index in chunk], self._rotation)
            self._prefilled |= zip(chunk, prompts, strict=True)

    def _new_rows(self, entering: list[tuple[int, int]]) -> _Rows:
        length = self._sampling.max_new_tokens
        cursors = torch.tensor([sample * length for sample, _ in entering], device=self._decoder.device)
        positions = [len(self._requests[index].tokens) for _, index in entering]
        return _Rows(cursors, cursors + (length - 1), torch.tensor(positions, device=self._decoder.device))


def _close_gaps(ended: list[bool]) -> list[int]:
    """The rows that go on, as few of them moved as can be: each gap takes one from the back.

    >>> _close_gaps([False, True, False, False])
    [0, 3, 2]
    """
    left = len(ended) - sum(ended)
    from_the_back = iter([row for row in range(left, len(ended)) if not ended[row]][::-1])
    return [next(from_the_back) if ended[row] else row for row in range(left)]


def _chunks(indices: list[int], requests: Sequence[Request]) -> Iterator[list[int]]:
    """Requests to prefill together, within the budget of tokens."""
    chunk: list[int] = []
    longest = 0
    for index in indices:
        longest = max(longest, len(requests[index].tokens))
        if chunk and longest * (len(chunk) + 1) > _PREFILL_TOKENS:
            yield chunk
            chunk, longest = [], len(requests[index].tokens)
        chunk.append(index)
    if chunk:
        yield chunk
