"""Sampling in vLLM as in every engine of Proa: the same tokens of the same seed, and the policy's log-probabilities.

vLLM's own sampler records log-probabilities after top-k, top-p and penalties, or before the temperature, and on a CPU
it draws from torch's global generator. This one stands in its place, and asks vLLM for nothing but logits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates
from vllm.v1.sample.sampler import Sampler

from ...choice import choose
from ...streams import uniforms
from ..requests import ASKED, Asked

_DRAWN = 64
"""So many random numbers are drawn together."""


@dataclass(eq=False, slots=True)
class Row:
    """What is known of the request in a row of vLLM's batch."""

    asked: Asked
    prompt: list[int]
    output: list[int]
    """vLLM's own list: it has the tokens that were sampled so far."""
    _seen: set[int] = field(default_factory=set)
    _seen_to: int = -1
    _draws: list[float] = field(default_factory=list)
    _drawn_from: int = -1

    @property
    def forced(self) -> int | None:
        """The next token, where it was given."""
        place = len(self.output)
        return self.asked.forced[place] if place < len(self.asked.forced) else None

    def draw(self) -> float:
        """The random number that its next token follows from: of its seed and its place alone."""
        place = len(self.output)
        first = place - place % _DRAWN
        if first != self._drawn_from:
            self._draws, self._drawn_from = uniforms([self.asked.seed], _DRAWN, first)[0].tolist(), first
        return self._draws[place - first]

    def seen(self) -> set[int]:
        """The tokens that a repetition penalty counts."""
        if self.asked.sampling.repetition_penalty == 1:
            return set()
        if self._seen_to < 0:
            self._seen, self._seen_to = set(self.prompt), 0
        self._seen.update(self.output[self._seen_to :])
        self._seen_to = len(self.output)
        return self._seen


class RowsOfRequests(LogitsProcessor):  # type: ignore[misc]
    """Knows which request is in which row of the batch; it leaves the logits as they are."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.rows: dict[int, Row] = {}

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.rows, batch_update, _row)


def _row(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> Row | None:
    asked = (params.extra_args or {}).get(ASKED)
    return None if asked is None else Row(asked, prompt or [], output)


class PolicySampler(Sampler):  # type: ignore[misc]
    """Chooses tokens by the one rule of Proa's engines."""

    def forward(
        self, logits: torch.Tensor, sampling_metadata: Any, *others: Any, **further: Any
    ) -> SamplerOutput:  # the others are of speculative decoding, which is refused
        rows = _rows(sampling_metadata.logitsprocs.all)
        if not rows:  # vLLM tries itself out while it starts
            return super().forward(logits, sampling_metadata, *others, **further)
        tokens_B = torch.empty(len(logits), dtype=torch.int64)
        log_probs_B = torch.empty(len(logits), dtype=torch.float32)
        for places, asked in _alike(rows, len(logits)):
            some_BV = logits if len(places) == len(logits) else logits[places]
            chosen = _forced(some_BV, rows, places) if asked.forced else _sampled(some_BV, rows, places)
            tokens_B[places], log_probs_B[places] = (one.cpu() for one in chosen)
        ids_B1 = tokens_B.to(torch.int32)[:, None]
        ranks_B = torch.zeros(len(logits), dtype=torch.int64)  # nobody asks for them
        log_probs = LogprobsTensors(ids_B1, log_probs_B[:, None], ranks_B)
        return SamplerOutput(sampled_token_ids=ids_B1.to(logits.device), logprobs_tensors=log_probs)


def _rows(processors: Iterable[Any]) -> dict[int, Row]:
    return next((one.rows for one in processors if isinstance(one, RowsOfRequests)), {})


def _alike(rows: dict[int, Row], count: int) -> list[tuple[list[int], Asked]]:
    """The rows in groups that are sampled by the same settings, each with one of its requests."""
    groups: dict[Any, list[int]] = {}
    for place in range(count):
        asked = rows[place].asked
        groups.setdefault((asked.settings, bool(asked.forced)), []).append(place)
    return [(places, rows[places[0]].asked) for places in groups.values()]


def _sampled(logits_BV: torch.Tensor, rows: dict[int, Row], places: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.tensor([rows[place].draw() for place in places], dtype=torch.float64, device=logits_BV.device)
    return choose(logits_BV, draws, rows[places[0]].asked.sampling, [rows[place].seen() for place in places])


def _forced(logits_BV: torch.Tensor, rows: dict[int, Row], places: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens that were given, and their log-probabilities at temperature 1."""
    given = [rows[place].forced for place in places]
    tokens_B1 = torch.tensor([token or 0 for token in given], device=logits_BV.device)[:, None]
    log_probs_B1 = logits_BV.float().log_softmax(-1).gather(-1, tokens_B1)
    return tokens_B1[:, 0], log_probs_B1[:, 0]


def use_policy_sampler(worker: Any) -> None:
    """Put it in the place of a worker's own."""
    runner = getattr(worker, "worker", worker).model_runner
    own = runner.sampler
    if not isinstance(own, Sampler):
        raise TypeError(
            f"vLLM samples with {type(own).__module__}.{type(own).__name__}, which Proa cannot stand in for"
        )
    runner.sampler = PolicySampler(logprobs_mode=own.logprobs_mode)
