"""The reference engine: the Hugging Face model itself, stepped one token at a time."""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..model_shape import context_length
from .adapters import remove_adapters
from .choice import choose
from .protocol import Request, check_call
from .record import Record
from .stepping import Steps, Trials
from .streams import uniforms
from .weights import WeightPlaces

if TYPE_CHECKING:
    from ..data.sampling import Completion, Sampling


class HFEngine:
    """Works for every Hugging Face causal LM that predicts tokens from tokens. Made to be right rather than fast.

    Only prompts of one length are computed together: no padding, no mask, nothing to get wrong. Steps through the
    model's cache are compared with a full pass before they are relied on; a model that is wrong in both is refused.
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
        self._model: Any = _copy(model, dtype, device)
        self._places = _places(self._model)
        self._end_ids = frozenset(end_ids)
        self._slots = slots
        self._vocabulary = int(self._model.get_input_embeddings().weight.shape[0])
        self._trials = Trials(self._model, self._vocabulary)
        self._trials.is_cache_right(1)  # what cannot be run at all is refused now

    @property
    def context_length(self) -> int:
        return context_length(self._model.config) or sys.maxsize

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        check_call(requests, sampling, context_length=self.context_length, vocabulary=self._vocabulary)
        prompts = [request.tokens for request in requests for _ in request.seeds]
        streams_SN = uniforms([seed for request in requests for seed in request.seeds], sampling.max_new_tokens)
        record = Record(len(prompts), sampling.max_new_tokens, self._model.device)
        for samples in self._batches(prompts):
            self._sample(samples, prompts, streams_SN.to(self._model.device), sampling, record)
        return record.completions(requests, self._end_ids)

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._places.fill(weights)

    def _batches(self, prompts: Sequence[tuple[int, ...]]) -> Iterator[list[int]]:
        """Samples whose prompts have one length, at most `slots` of them."""
        by_length = defaultdict(list)
        for sample, prompt in enumerate(prompts):
            by_length[len(prompt)].append(sample)
        for samples in by_length.values():
            size = self._slots or len(samples)
            yield from (samples[first : first + size] for first in range(0, len(samples), size))

    @torch.inference_mode()
    def _sample(
        self,
        samples: list[int],
        prompts: Sequence[tuple[int, ...]],
        streams_SN: torch.Tensor,
        sampling: Sampling,
        record: Record,
    ) -> None:
        device = self._model.device
        rows_B = torch.tensor(samples, device=device)
        ends = torch.tensor(sorted(self._end_ids), dtype=torch.int64, device=device)
        inputs_BT = torch.tensor([prompts[sample] for sample in samples], device=device)
        running_B = torch.ones_like(rows_B, dtype=torch.bool)
        longest = inputs_BT.shape[1] + sampling.max_new_tokens
        follow = Steps(self._model, cached=self._trials.is_cache_right(longest))
        for position in range(sampling.max_new_tokens):
            tokens_B, log_probs_B = choose(follow(inputs_BT), streams_SN[rows_B, position], sampling)
            cursors_B = rows_B * sampling.max_new_tokens + position
            record.write(cursors_B[running_B], tokens_B[running_B], log_probs_B[running_B])
            running_B = running_B & ~torch.isin(tokens_B, ends)
            if not bool(running_B.any()):
                return
            inputs_BT = tokens_B[:, None]


def _copy(model: torch.nn.Module, dtype: torch.dtype | None, device: torch.device | str | None) -> Any:
    """A copy of the model for inference; only parameters are cast, for rotary frequencies need their float32."""
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    remove_adapters(copied)
    for parameter in copied.parameters():
        parameter.grad = None
        parameter.data = parameter.data.to(dtype or parameter.dtype)
    return copied.to(device) if device is not None else copied


def _places(model: torch.nn.Module) -> WeightPlaces:
    places: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    names: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        main = names.setdefault(id(tensor), name)
        if main == name:
            places[name] = tensor
        else:
            tied[name] = main
    return WeightPlaces(places, tied)
