"""vLLM behind the protocol of engines."""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import ProaError, SettingError
from ...model_shape import cache_bytes
from ...policy.adapter_layout import AdaptedWeights
from ...policy.lora import LoraSettings
from ...vllm_arguments import SIZES, check_arguments
from ..description import ModelDescription
from ..native import SLOTS
from ..protocol import EngineBusyError, Progress, Request, check_request, refuse_second
from ..weights import noise_for, places_of
from .adapters import noise_adapter
from .core import Core, check_process, check_served
from .independence import is_independent
from .requests import StepOutput, sampling_params, scoring_params

log = logging.getLogger("proa.vllm")

_ADAPTERS = 2
"""So many versions are held, where they are adapters."""
MOST_RANK = 16
"""The rank of the largest adapter, unless it is set."""
_SHARE = 4
"""Of the memory that is there for engines, a fourth is the most that the cache takes unless it is set."""


@dataclass(frozen=True, slots=True)
class _Queued:
    """What vLLM is to decode."""

    name: str
    tokens: Sequence[int]
    params: Any
    """vLLM's."""
    blocks: int
    """Of the cache, that it takes at the most."""
    adapter: Any
    """What vLLM calls it, if its version is one."""


class VLLMEngine:
    """Decodes with vLLM, in this process, what vLLM serves.

    vLLM has the weights that came last, and is asked for logits only: tokens are chosen as in all engines of Proa. A
    request is handed to vLLM when the cache has room for the longest that it may become, so vLLM puts none off.

    With `options={"enable_lora": True}` vLLM keeps the base and gets adapters, of which it decodes with two at once.
    """

    def __init__(
        self,
        description: ModelDescription,
        *,
        slots: int = 0,
        cache_tokens: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.check_settings(slots=slots, cache_tokens=cache_tokens, options=options)
        options = options or {}
        check_served(description.config, description.architecture.__name__)
        check_process(description, options)
        outline: Any = description.outline()
        self.dtype, self.device = description.dtype, description.device
        self._places = places_of(outline)
        self._end_ids = description.end_ids
        self._vocabulary = int(outline.get_input_embeddings().weight.shape[0])
        self._slots = slots or SLOTS.get(self.device.type, 64)
        self._core = Core(description, options, **_own_arguments(description, options, self._slots, cache_tokens))
        self.applies_adapters = bool(options.get("enable_lora"))
        """Whether an adapter need not be merged for it."""
        self._most_rank = int(options.get("max_lora_rank", MOST_RANK))
        self._held: dict[int, Any] = {}  # by version, with what vLLM calls the adapter if that is what came
        self._base: Mapping[str, torch.Tensor] | None = None  # which adapters go over, where it is loaded
        self._waiting: deque[_Queued] = deque()
        self._live: dict[str, _Queued] = {}
        self._requests: dict[str, Request] = {}  # of what waits or is decoded
        self._sampled: dict[str, list[int]] = {}  # of what is to be kept
        self._kept: dict[str, tuple[int, tuple[int, ...]]] = {}  # with the version
        self._ready: list[StepOutput] = []  # came of steps that were taken for scores
        self._numbers = itertools.count()
        self._has_said = False
        self._is_damaged = False  # whether the cache has what is no number, of damaged weights
        self._is_independent = self._try(outline)

    @staticmethod
    def check(config: Any) -> None:
        """Raise unless vLLM is here and serves models of this configuration."""
        check_arguments({})
        check_served(config)

    @staticmethod
    def check_settings(*, slots: int = 0, cache_tokens: int = 0, options: Mapping[str, Any] | None = None) -> None:
        """Raise unless vLLM is here and has these arguments."""
        check_arguments(options or {}, slots=slots, cache_tokens=cache_tokens)

    @property
    def context_length(self) -> int:
        return self._core.context_length

    @property
    def free(self) -> int:
        return max(0, self._slots - len(self._live) - len(self._waiting))

    @property
    def is_independent(self) -> bool:
        return self._is_independent

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(self._held)

    # -- requests ------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        refuse_second(request, self._requests)
        if request.version not in self.versions:
            raise SettingError(f"request {request.id} wants weights of version {request.version}, which are not loaded")
        version, before = self._kept.get(request.continues, (request.version, ()))
        if request.continues and (request.continues not in self._kept or version != request.version):
            raise SettingError(
                f"request {request.id} continues {request.continues!r}, which was not kept by this engine with the "
                f"weights of version {request.version}"
            )
        check_request(request, context_length=self.context_length, vocabulary=self._vocabulary, continued=len(before))
        tokens = (*before, *request.tokens)
        queued = _Queued(
            request.id, tokens, sampling_params(request, self._end_ids),
            self._blocks_for(len(tokens) + request.sampling.max_new_tokens), self._held[request.version],
        )  # fmt: skip
        if queued.blocks > self._core.blocks:
            raise SettingError(
                f"request {request.id} may become {len(tokens) + request.sampling.max_new_tokens} tokens long, and "
                f"vLLM's cache has room for {self._core.blocks * self._core.block_tokens}: raise engine.cache_tokens"
            )
        self._requests[request.id] = request
        if request.keep:
            self._sampled[request.id] = list(tokens)
        self._waiting.append(queued)
        self._kept.pop(request.continues, None)

    def cancel(self, request_id: str) -> None:
        self._kept.pop(request_id, None)
        self._sampled.pop(request_id, None)
        if self._requests.pop(request_id, None) is None:
            return
        self._waiting = deque(one for one in self._waiting if one.name != request_id)
        self._ready = [one for one in self._ready if one.id != request_id]
        if self._live.pop(request_id, None) is not None:
            self._core.abort(request_id)

    def step(self) -> list[Progress]:
        outputs, self._ready = [*self._ready, *self._step()], []
        return [self._progress(one) for one in outputs if one.id in self._requests]

    def _step(self) -> list[StepOutput]:
        self._enter()
        if not self._live:
            return []
        outputs = self._core.step()
        for one in outputs:
            self._is_damaged = self._is_damaged or not one.is_finite
            if one.finish_reason is not None:
                self._live.pop(one.id, None)
        return [one for one in outputs if one.tokens]

    def _enter(self) -> None:
        """Hand vLLM those that wait and have room, in the order in which they came."""
        taken = sum(one.blocks for one in self._live.values())
        while self._waiting and len(self._live) < self._slots:
            taken += self._waiting[0].blocks
            if taken > self._core.blocks:
                return
            one = self._waiting.popleft()
            self._core.add(one.name, one.tokens, one.params, one.adapter)
            self._live[one.name] = one

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._core.block_tokens)

    def _progress(self, output: StepOutput) -> Progress:
        request = self._requests[output.id]
        if request.keep:
            self._sampled[output.id].extend(output.tokens)
        if output.finish_reason is not None:
            del self._requests[output.id]
            if request.keep:
                self._kept[output.id] = request.version, tuple(self._sampled.pop(output.id))
        return output.progress(request.version)

    # -- weights -------------------------------------------------------------------------------------

    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        return [torch.tensor(one) for one in self._scores([(tuple(tokens), 1) for tokens in sequences])]

    def _scores(self, texts: Sequence[tuple[tuple[int, ...], int]]) -> list[list[float]]:
        """The log-probabilities of each text's tokens after so many, forced through decode steps."""
        scores: dict[str, list[float]] = {f"score {next(self._numbers)}": [] for _ in texts}
        newest, open_ = self._held[max(self._held)], set()
        for name, (tokens, first) in zip(scores, texts, strict=True):
            if len(tokens) > first:
                params = scoring_params(tokens[first:])
                blocks = self._blocks_for(len(tokens))
                self._waiting.appendleft(_Queued(name, tokens[:first], params, blocks, newest))
                open_.add(name)
        while open_:
            for one in self._step():
                if one.id not in scores:
                    self._ready.append(one)
                    continue
                scores[one.id].extend(one.log_probs)
                if one.finish_reason is not None:
                    open_.discard(one.id)
        return list(scores.values())

    def _try(self, outline: Any) -> bool:
        """Whether requests depend on one another, tried with noise for weights. It has none after that."""
        noise = noise_for(outline, self.device)
        if self.applies_adapters:
            layout = LoraSettings(rank=min(self._most_rank, MOST_RANK)).layout(outline)
            self.load(AdaptedWeights(noise, noise_adapter(layout), layout), 0)
        else:
            self.load(noise, 0)
        try:
            independent = is_independent(
                self, self._scores, self._core.forget, vocabulary=self._vocabulary, block=self._core.block_tokens
            )
        except Exception as error:
            raise SettingError(f"vLLM cannot compute with this model on {self.device}: {error}") from error
        self._core.forget()
        self._drop(0)
        self._base = None
        return independent

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        if self.applies_adapters and isinstance(weights, AdaptedWeights):
            self._load_adapter(weights, version)
            return
        self._take(weights, version)
        self._held = {version: None}

    def _load_adapter(self, weights: AdaptedWeights, version: int) -> None:
        if weights.layout.rank > self._most_rank:
            raise SettingError(
                f"the adapter's rank is {weights.layout.rank}, and engine.options.max_lora_rank is {self._most_rank}: "
                "raise it"
            )
        if weights.base is not self._base:
            self._take(weights.base, version)
            self._base = weights.base
        idle = [held for held in self._held if not self._uses(held)]
        if version in self._held and version not in idle:
            raise EngineBusyError(f"version {version} cannot be loaded again while sequences of it are decoded or kept")
        if len(self._held) == _ADAPTERS and not idle:
            raise EngineBusyError(
                f"version {version} cannot be loaded while sequences of {', '.join(map(str, self._held))} are decoded "
                "or kept"
            )
        loaded = self._core.add_adapter(weights.adapter, weights.layout)
        if version in self._held or len(self._held) == _ADAPTERS:
            self._drop(version if version in self._held else min(idle))
        self._held[version] = loaded

    def _uses(self, version: int) -> bool:
        """Whether something is decoded with it, or waits for it, or may be continued with it."""
        asked = any(request.version == version for request in self._requests.values())
        return asked or any(kept == version for kept, _ in self._kept.values())

    def _drop(self, version: int) -> None:
        if (loaded := self._held.pop(version)) is not None:
            self._core.remove_adapter(loaded)

    def _take(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Have vLLM take whole weights, in the place of all that it had."""
        if self._requests or self._kept:
            raise EngineBusyError(
                f"version {version} cannot be loaded while sequences of version {', '.join(map(str, self._held))} are "
                "decoded or kept"
            )
        matched = self._places.matched(weights)
        for held in list(self._held):
            self._drop(held)
        self._base = None
        try:
            self._core.update(matched, version)
            if self._is_damaged:
                self._core.clear()
                self._is_damaged = False
        except Exception as error:
            raise ProaError(
                f"vLLM has not taken the weights of version {version}, and has none now: {error}"
            ) from error

    def sleep(self) -> None:
        if self._requests:
            return
        if self._core.can_sleep:
            self._core.sleep()
        elif not self._has_said:
            self._has_said = True
            log.warning(
                "engine.sleep does nothing here: %s",
                "vLLM cannot sleep on a CPU" if self.device.type == "cpu" else "give engine.options.enable_sleep_mode",
            )


def _own_arguments(
    description: ModelDescription, options: Mapping[str, Any], slots: int, cache_tokens: int
) -> dict[str, Any]:
    """What vLLM is told unless the user tells it otherwise."""
    config: Any = description.config
    own: dict[str, Any] = {"max_num_seqs": slots, "enable_chunked_prefill": False}
    context = int(options.get("max_model_len") or config.max_position_embeddings)
    own["max_num_batched_tokens"] = max(context, 2048)
    if options.get("enable_lora"):
        # One more is loaded before one is dropped, and vLLM drops the last used of its own accord.
        own |= {"max_loras": _ADAPTERS, "max_cpu_loras": 2 * _ADAPTERS, "max_lora_rank": MOST_RANK}
    if description.device.type == "cpu":
        own["enforce_eager"] = True  # compiling takes minutes, and changes the last bits
    if not any(name in options for name in SIZES):
        own["kv_cache_memory_bytes"] = _cache_size(description, context, slots, cache_tokens)
    return own


def _cache_size(description: ModelDescription, context: int, slots: int, cache_tokens: int) -> int:
    """Bytes for so many tokens; for all slots, as far as memory goes, unless they are given."""
    of_a_token = cache_bytes(description.config, description.dtype.itemsize)
    tokens = cache_tokens
    if not tokens:
        tokens = max(context, min(slots * context, _memory(description.device) // _SHARE // of_a_token))
    rounded = tokens + (slots + 2) * 128  # each sequence begins a block of its own
    return rounded * of_a_token


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # the trainer is there too
