"""The reference engine: the Hugging Face model itself, stepped one token at a time."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from ..data.versions import NO_VERSION
from ..errors import SettingError
from ..model_shape import context_length
from .choice import choose
from .description import ModelDescription
from .protocol import EngineBusyError, Progress, Request, check_request, refuse_second
from .sequences import DecodedSequence, Given
from .stepping import Steps, Trials
from .weights import places_of


class HFEngine:
    """Works for every Hugging Face causal LM that predicts tokens from tokens. Simple rather than fast.

    Only sequences of one length are computed together, until the last of them ends, without padding or masks. Sequences
    computed together affect each other's last bits, so reproducing bits requires submitting the same requests together.
    Steps through the model's cache are first compared with a full pass; a model that is wrong in both raises an error.
    """

    is_independent = False

    def __init__(self, description: ModelDescription, *, slots: int = 0) -> None:
        model: Any = description.empty_model()
        self._model = model
        self._places = places_of(model)
        self._version = NO_VERSION
        self._end_ids = description.end_ids
        self._slots = slots or sys.maxsize
        self._vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self._trials = Trials(model, self._vocabulary)
        self._trials.is_cache_right(1)  # raises for a model that cannot run at all
        self._names: set[str] = set()  # of requests that wait or are decoded
        self._waiting: list[DecodedSequence] = []
        self._batch: list[DecodedSequence] = []
        self._follow: Steps | None = None
        self._kept: dict[str, tuple[int, ...]] = {}

    @property
    def context_length(self) -> int:
        return context_length(self._model.config) or sys.maxsize

    @property
    def free(self) -> int:
        return max(0, self._slots - len(self._batch) - len(self._waiting))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its computation."""
        dtype: torch.dtype = self._model.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """The device of its computation."""
        device: torch.device = self._model.device
        return device

    @property
    def versions(self) -> tuple[int, ...]:
        return () if self._version == NO_VERSION else (self._version,)

    def submit(self, request: Request) -> None:
        refuse_second(request, self._names)
        if request.version not in self.versions:
            raise SettingError(f"request {request.id} wants weights of version {request.version}, which are not loaded")
        if request.continues and request.continues not in self._kept:
            raise SettingError(f"request {request.id} continues {request.continues!r}, which was not kept")
        before = self._kept.get(request.continues, ())
        check_request(request, context_length=self.context_length, vocabulary=self._vocabulary, continued=len(before))
        self._names.add(request.id)
        self._waiting.append(DecodedSequence(request, [Given((*before, *request.tokens))]))
        self._kept.pop(request.continues, None)

    def cancel(self, request_id: str) -> None:
        self._kept.pop(request_id, None)
        self._names.discard(request_id)
        self._waiting = [sequence for sequence in self._waiting if sequence.request.id != request_id]
        for sequence in self._batch:
            if sequence.request.id == request_id:
                sequence.finish_reason = sequence.finish_reason or "length"  # it is no longer needed

    @torch.inference_mode()
    def step(self) -> list[Progress]:
        if all(sequence.finish_reason is not None for sequence in self._batch) and not self._begin():
            return []
        assert self._follow is not None
        is_first = not any(sequence.sampled for sequence in self._batch)
        inputs = [one.segments[0].tokens if is_first else (one.next_token,) for one in self._batch]
        logits_BV = self._follow(torch.tensor(inputs, device=self._model.device))
        running = [row for row, sequence in enumerate(self._batch) if sequence.finish_reason is None]
        for _, rows in groupby(running, key=lambda row: self._batch[row].settings):
            self._sample(list(rows), logits_BV)
        progress = [self._batch[row].take_progress() for row in running]
        for row in running:
            self._keep(self._batch[row])
        return [one for one in progress if one is not None]

    def _begin(self) -> bool:
        """Take the next sequences of one length; returns whether there are any."""
        self._batch, self._follow = [], None
        if not self._waiting:
            return False
        length = _prompt_length(self._waiting[0])
        self._batch = [one for one in self._waiting if _prompt_length(one) == length][: self._slots]
        taken = set(map(id, self._batch))
        self._waiting = [one for one in self._waiting if id(one) not in taken]
        longest = max(sequence.longest for sequence in self._batch)
        self._follow = Steps(self._model, cached=self._trials.is_cache_right(longest))
        return True

    def _sample(self, rows: list[int], logits_BV: torch.Tensor) -> None:
        sequences = [self._batch[row] for row in rows]
        draws = [sequence.draw() for sequence in sequences]
        uniforms_B = torch.tensor(draws, dtype=torch.float64, device=logits_BV.device)
        seen = [sequence.seen for sequence in sequences]
        tokens_B, log_probs_B = choose(logits_BV[rows], uniforms_B, sequences[0].request.sampling, seen)
        for sequence, token, log_prob in zip(sequences, tokens_B.tolist(), log_probs_B.tolist(), strict=True):
            sequence.choose(token, log_prob, is_end=token in self._end_ids)

    def _keep(self, sequence: DecodedSequence) -> None:
        if sequence.finish_reason is None:
            return
        self._names.discard(sequence.request.id)
        if sequence.request.keep:
            self._kept[sequence.request.id] = (*sequence.segments[0].tokens, *sequence.sampled)

    @torch.inference_mode()
    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        return [self._score(torch.tensor([list(tokens)], device=self._model.device)) for tokens in sequences]

    def _score(self, tokens_1T: torch.Tensor) -> torch.Tensor:
        follow = Steps(self._model, cached=self._trials.is_cache_right(tokens_1T.shape[1]))
        logits = [follow(token_1[:, None]) for token_1 in tokens_1T[:, :-1].unbind(1)]
        if not logits:
            return torch.empty(0)
        log_probs_TV = torch.cat(logits).float().log_softmax(-1)
        return log_probs_TV.gather(-1, tokens_1T[0, 1:, None])[:, 0].cpu()

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        if self._waiting or self._kept or any(sequence.finish_reason is None for sequence in self._batch):
            raise EngineBusyError(
                f"version {version} cannot be loaded while sequences of version {self._version} are decoded or kept"
            )
        self._places.fill(weights)
        self._version = version

    def sleep(self) -> None:
        if all(sequence.finish_reason is not None for sequence in self._batch):
            self._batch, self._follow = [], None


def _prompt_length(sequence: DecodedSequence) -> int:
    return len(sequence.segments[0].tokens)
