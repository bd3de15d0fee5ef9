"""The native engine: our own decode loop over Hugging Face weights."""

from __future__ import annotations

import copy
import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..data.versions import NO_VERSION
from ..errors import SettingError
from .backends import choose_backend
from .decoding_rows import DecodingRows
from .description import ModelDescription
from .protocol import EngineBusyError, Progress, Request, check_request, refuse_second
from .sequences import DecodedSequence, Given, Group, Sampled, Segment
from .shapes import build_decoder, check_known
from .weights import WeightPlaces

SLOTS = {"cpu": 64, "cuda": 256}
"""The default number of sequences decoded at once on each kind of device."""


@dataclass
class _Version:
    """One version of the weights, with its rows."""

    rows: DecodingRows
    places: WeightPlaces


@dataclass(frozen=True, slots=True)
class _Kept:
    """An ended request that may be continued: its segments, and its cache until the room is needed."""

    version: int
    segments: tuple[Segment, ...]
    cache: object | None

    @property
    def length(self) -> int:
        return sum(len(segment.tokens) for segment in self.segments)


class NativeEngine:
    """Decodes Llama, SmolLM, Mistral, Qwen2, Qwen3 and GPT-2 shapes, as a stream.

    A group's prompt is computed once. As sequences end, waiting ones take their rows. A sequence enters only if the
    cache has room for its longest possible length, so none is preempted.
    """

    def __init__(
        self,
        description: ModelDescription,
        *,
        slots: int = 0,
        cache_tokens: int = 0,
        versions: int = 2,
    ) -> None:
        config: Any = description.config
        decoder, places = build_decoder(description)
        self._context_length = int(config.max_position_embeddings)
        self._vocabulary = decoder.embeddings.shape[0]
        self._slots = slots or SLOTS.get(decoder.device.type, 64)
        self.backend = choose_backend(decoder, self._slots, description.end_ids, cache_tokens, self._context_length)
        self._most_versions = versions
        self._versions = {NO_VERSION: _Version(self.backend.rows(decoder), places)}
        self._names: set[str] = set()  # of requests that wait or are decoded
        self._waiting: deque[DecodedSequence] = deque()
        self._awaited: Counter[tuple[int, Group]] = Counter()  # the number of waiting requests by version and group
        self._kept: dict[str, _Kept] = {}

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def is_independent(self) -> bool:
        return self.backend.is_independent

    @property
    def free(self) -> int:
        return max(0, self._slots - self._decoded - len(self._waiting))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its computation."""
        return next(iter(self._versions.values())).rows.decoder.embeddings.dtype

    @property
    def device(self) -> torch.device:
        """The device of its computation."""
        return next(iter(self._versions.values())).rows.decoder.device

    @property
    def versions(self) -> Collection[int]:
        return self._versions.keys() - {NO_VERSION}

    @property
    def cache_tokens(self) -> int:
        """The number of tokens that its cache has memory for now; on a GPU, the number of taken ones."""
        return self.backend.taken([version.rows for version in self._versions.values()])

    @property
    def _decoded(self) -> int:
        return sum(len(version.rows.live) for version in self._versions.values())

    @staticmethod
    def check(config: Any) -> None:
        """Raise unless it supports models of this configuration."""
        check_known(config)

    # -- requests ------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        refuse_second(request, self._names)
        if request.version not in self.versions:
            raise SettingError(f"request {request.id} wants weights of version {request.version}, which are not loaded")
        kept = self._find_kept(request)
        before = () if kept is None else kept.segments
        check_request(
            request,
            context_length=self._context_length,
            vocabulary=self._vocabulary,
            continued=0 if kept is None else kept.length,
        )
        more = [Given(request.tokens)] if request.tokens else []
        sequence = DecodedSequence(request, [*before, *more])
        sequence.cached = None if kept is None else kept.cache
        sequence.todo.extend(more if sequence.cached is not None else sequence.segments)
        self._check_room(sequence)
        self._names.add(request.id)
        self._waiting.append(sequence)
        self._awaited[request.version, sequence.group] += 1
        self._kept.pop(request.continues, None)

    def _find_kept(self, request: Request) -> _Kept | None:
        """The kept request that it continues, if any."""
        if not request.continues:
            return None
        kept = self._kept.get(request.continues)
        if kept is None or kept.version != request.version:
            raise SettingError(
                f"request {request.id} continues {request.continues!r}, which was not kept by this engine with the "
                f"weights of version {request.version}"
            )
        return kept

    def _check_room(self, sequence: DecodedSequence) -> None:
        needed = self._versions[sequence.request.version].rows.tokens_alone(sequence)
        if needed > self.backend.most_tokens:
            raise SettingError(
                f"request {sequence.request.id} may become {sequence.longest} tokens long, which takes {needed} tokens "
                f"of the cache, and engine.cache_tokens is {self.backend.most_tokens}"
            )

    @torch.inference_mode()
    def cancel(self, request_id: str) -> None:
        if (kept := self._kept.pop(request_id, None)) is not None:
            self._drop(kept.version, kept.cache)
        if request_id not in self._names:
            return
        self._names.remove(request_id)
        for sequence in [one for one in self._waiting if one.request.id == request_id]:
            self._waiting.remove(sequence)
            self._count_out(sequence)
            self._drop(sequence.request.version, sequence.cached)
        for version in self._versions.values():
            version.rows.remove([row for row, one in enumerate(version.rows.live) if one.request.id == request_id])
        self._forget_prompts()

    # -- decoding ------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Progress]:
        touched = dict.fromkeys(self._enter())
        self._retire()
        for version in self._versions.values():
            if version.rows.live:
                touched |= dict.fromkeys(version.rows.live)
                version.rows.step()
        self._retire()
        return [progress for sequence in touched if (progress := sequence.take_progress()) is not None]

    def _enter(self) -> list[DecodedSequence]:
        """Give rows to waiting sequences that have room, in their order: one without room holds back those after it."""
        if not self._waiting:
            return []
        room = self._slots + self.backend.ahead - self._decoded
        if room < min(self.backend.fewest_entering, len(self._waiting)):
            return []
        first = [self._waiting[place] for place in range(min(room, len(self._waiting)))]
        for number, version in self._versions.items():
            version.rows.compact(_of_version(number, first))
        entering = [self._waiting.popleft() for _ in range(self._count_fitting(first))]
        for sequence in entering:
            self._count_out(sequence)
        for number, version in self._versions.items():
            version.rows.enter(_of_version(number, entering))
        if entering:
            self._forget_prompts()
        return entering

    def _count_fitting(self, first: Sequence[DecodedSequence]) -> int:
        """How many of the first waiting sequences the cache has room for, after dropping caches that can be rebuilt, if
        necessary."""
        if self.backend.most_tokens == math.inf:
            return len(first)
        self._drop_kept(self._needed(first))
        if not self._fits(first[:1]):
            self._drop_waiting()
        return bisect_left(range(1, len(first) + 1), True, key=lambda count: not self._fits(first[:count]))

    def _fits(self, entering: Sequence[DecodedSequence]) -> bool:
        return self.cache_tokens + self._needed(entering) <= self.backend.most_tokens

    def _needed(self, entering: Sequence[DecodedSequence]) -> int:
        """The tokens of the cache that these take in addition."""
        return sum(
            version.rows.tokens_needed(_of_version(number, entering)) for number, version in self._versions.items()
        )

    def _count_out(self, sequence: DecodedSequence) -> None:
        key = sequence.request.version, sequence.group
        self._awaited[key] -= 1
        if not self._awaited[key]:
            del self._awaited[key]

    def _forget_prompts(self) -> None:
        for number, version in self._versions.items():
            version.rows.forget_prompts(partial(self._is_awaited, number))

    def _is_awaited(self, version: int, group: Group) -> bool:
        return (version, group) in self._awaited

    def _retire(self) -> None:
        """Free the rows of ended sequences, and keep those that may be continued."""
        for number, version in self._versions.items():
            ended = [row for row, sequence in enumerate(version.rows.live) if sequence.finish_reason is not None]
            for row in ended:
                sequence = version.rows.live[row]
                self._names.discard(sequence.request.id)
                if sequence.request.keep:
                    segments = (*sequence.segments, Sampled(tuple(sequence.sampled)))
                    self._kept[sequence.request.id] = _Kept(number, segments, version.rows.kept(row))
            if ended:
                version.rows.remove(ended)
                version.rows.forget_prompts(partial(self._is_awaited, number))
        self._drop_kept(0)

    def _drop_kept(self, needed: int) -> None:
        """Drop the caches of kept requests, the oldest first, until there is this much room."""
        for name, kept in self._kept.items():
            if self.cache_tokens + needed <= self.backend.most_tokens:
                return
            self._drop(kept.version, kept.cache)
            self._kept[name] = replace(kept, cache=None)

    def _drop_waiting(self) -> None:
        """Drop the caches of waiting sequences, the last one's first, until the first has room."""
        for sequence in reversed(list(self._waiting)[1:]):
            if self._fits([self._waiting[0]]):
                return
            self._drop(sequence.request.version, sequence.cached)
            sequence.cached, sequence.todo = None, deque(sequence.segments)

    def _drop(self, version: int, cache: object | None) -> None:
        if cache is not None:
            self._versions[version].rows.drop(cache)

    # -- weights -------------------------------------------------------------------------------------

    @torch.inference_mode()
    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        return self._versions[max(self._versions)].rows.score(sequences)

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        held = self._versions.get(version)
        if held is None:
            idle = [number for number in self._versions if not self._uses(number)]
            if not idle and len(self._versions) == self._most_versions:
                raise EngineBusyError(
                    f"version {version} cannot be loaded while sequences of {', '.join(map(str, self._versions))} are "
                    "decoded or kept"
                )
            if not idle:
                self._versions[version] = self._add_version(weights)
                return
            self._replace(min(idle), weights)
            self._versions[version] = self._versions.pop(min(idle))
        elif self._uses(version):
            raise EngineBusyError(f"version {version} cannot be loaded again while sequences of it are decoded or kept")
        else:
            self._replace(version, weights)

    def _uses(self, version: int) -> bool:
        """Whether sequences of this version are decoded, waiting, or kept."""
        waits = any(sequence.request.version == version for sequence in self._waiting)
        keeps = any(kept.version == version for kept in self._kept.values())
        return waits or keeps or bool(self._versions[version].rows.live)

    def _replace(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights of a version, whose caches become invalid."""
        held = self._versions[version]
        with held.rows.changing():
            held.places.fill(weights)
            held.rows.decoder.weights_changed()
        held.rows.forget_prompts(lambda _: False)

    def _add_version(self, weights: Mapping[str, torch.Tensor]) -> _Version:
        """Allocate one more version with these weights."""
        first = next(iter(self._versions.values()))
        decoder, places = copy.deepcopy((first.rows.decoder, first.places))
        places.fill(weights)
        decoder.weights_changed()
        return _Version(self.backend.rows(decoder), places)

    def sleep(self) -> None:
        if self._decoded or self._waiting:
            return
        for name, kept in self._kept.items():
            self._drop(kept.version, kept.cache)
            self._kept[name] = replace(kept, cache=None)
        self._forget_prompts()
        for version in self._versions.values():
            version.rows.release()


def _of_version(number: int, sequences: Iterable[DecodedSequence]) -> list[DecodedSequence]:
    return [sequence for sequence in sequences if sequence.request.version == number]
