"""The native engine: our own decode loop over Hugging Face weights."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..errors import SettingError
from .cache import BLOCK, blocks_for
from .decoder import Decoder, Prefilled
from .independence import is_independent
from .product_shapes import ProductShapes, padded
from .protocol import EngineBusyError, Progress, Request, check_request, refuse_second
from .rows import CHUNK, Rows
from .scoring import score_by_steps
from .sequences import DecodedSequence, Given, Group, Sampled, Segment
from .shapes import build_decoder
from .weights import WeightPlaces

SLOTS = {"cpu": 64, "cuda": 256}
"""How many sequences are decoded at once on each kind of device, unless it is set."""


@dataclass
class _Version:
    """One version of the weights, and what is decoded with it."""

    rows: Rows
    places: WeightPlaces


@dataclass(frozen=True, slots=True)
class _Kept:
    """A request that ended and may be continued: what it consists of, and its cache until the room is needed."""

    version: int
    segments: tuple[Segment, ...]
    cache: Prefilled | None

    @property
    def length(self) -> int:
        return sum(len(segment.tokens) for segment in self.segments)


class NativeEngine:
    """Decodes Llama, SmolLM, Mistral, Qwen2, Qwen3 and GPT-2 shapes, as a stream.

    A group's prompt is computed once. As sequences end, those that wait take their rows. A sequence is taken in only if
    the cache has room for the longest that it may become, so none is put off once it has begun.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        end_ids: Collection[int],
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        slots: int = 0,
        cache_tokens: int = 0,
        versions: int = 2,
    ) -> None:
        config: Any = model.config
        decoder, places = build_decoder(model, dtype, device)
        self._context_length = int(config.max_position_embeddings)
        self._vocabulary = decoder.embeddings.shape[0]
        self._end_ids = frozenset(end_ids)
        self._slots = slots or SLOTS.get(decoder.device.type, 64)
        self._cache_tokens = cache_tokens
        self._most_versions = versions
        self.shapes, self._is_independent = _independent_shapes(decoder, self._slots)
        self._versions = {0: _Version(Rows(decoder, self.shapes, self._end_ids), places)}
        self._names: set[str] = set()  # of what waits or is decoded
        self._waiting: deque[DecodedSequence] = deque()
        self._awaited: Counter[tuple[int, Group]] = Counter()  # by version and group, how many of them wait
        self._kept: dict[str, _Kept] = {}

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def is_independent(self) -> bool:
        return self._is_independent

    @property
    def free(self) -> int:
        return max(0, self._slots - self._decoded - len(self._waiting))

    @property
    def cache_tokens(self) -> int:
        """How many tokens its cache has memory for now."""
        return sum(version.rows.cache_tokens for version in self._versions.values())

    @property
    def _decoded(self) -> int:
        return sum(len(version.rows.live) for version in self._versions.values())

    # -- requests ------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        refuse_second(request, self._names)
        if request.version not in self._versions:
            raise SettingError(f"request {request.id} wants weights of version {request.version}, which are not loaded")
        kept = self._kept_for(request)
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

    def _kept_for(self, request: Request) -> _Kept | None:
        """What it continues, if it continues something."""
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
        needed = self.shapes.rows_for(1) * blocks_for(sequence.longest) * BLOCK
        if self._cache_tokens and needed > self._cache_tokens:
            raise SettingError(
                f"request {sequence.request.id} may become {sequence.longest} tokens long, which takes {needed} tokens "
                f"of the cache, and engine.cache_tokens is {self._cache_tokens}"
            )

    @torch.inference_mode()
    def cancel(self, request_id: str) -> None:
        self._kept.pop(request_id, None)
        if request_id not in self._names:
            return
        self._names.remove(request_id)
        for sequence in [one for one in self._waiting if one.request.id == request_id]:
            self._waiting.remove(sequence)
            self._count_out(sequence)
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
        """Give rows to those that wait and have room, in the order in which they came: one that has no room holds back
        those after it."""
        if not self._waiting:
            return []
        if self._cache_tokens:
            for version in self._versions.values():
                version.rows.clear()
        entering: list[DecodedSequence] = []
        while self._waiting and self._decoded + len(entering) < self._slots:
            if not self._fits([*entering, self._waiting[0]]):
                break
            entering.append(self._waiting.popleft())
            self._count_out(entering[-1])
        for number, version in self._versions.items():
            version.rows.enter([sequence for sequence in entering if sequence.request.version == number])
        if entering:
            self._forget_prompts()
        return entering

    def _count_out(self, sequence: DecodedSequence) -> None:
        key = sequence.request.version, sequence.group
        self._awaited[key] -= 1
        if not self._awaited[key]:
            del self._awaited[key]

    def _fits(self, entering: Sequence[DecodedSequence]) -> bool:
        if not self._cache_tokens:
            return True
        needed = 0
        for number, version in self._versions.items():
            own = [sequence for sequence in entering if sequence.request.version == number]
            needed += version.rows.tokens_with(own)
        return needed <= self._cache_tokens

    def _forget_prompts(self) -> None:
        for number, version in self._versions.items():
            version.rows.forget_prompts(partial(self._is_awaited, number))

    def _is_awaited(self, version: int, group: Group) -> bool:
        return (version, group) in self._awaited

    def _retire(self) -> None:
        """Free the rows of those that have ended; keep what may be continued."""
        for number, version in self._versions.items():
            ended = [row for row, sequence in enumerate(version.rows.live) if sequence.finish_reason is not None]
            for row in ended:
                sequence = version.rows.live[row]
                self._names.discard(sequence.request.id)
                if sequence.request.keep:
                    segments = (*sequence.segments, Sampled(tuple(sequence.sampled)))
                    self._kept[sequence.request.id] = _Kept(number, segments, version.rows.kept(row))
            version.rows.remove(ended)
        self._drop_caches()

    def _drop_caches(self) -> None:
        """Of what is kept, the oldest first, as long as the cache is over its budget; they can be made again."""
        if not self._cache_tokens:
            return
        over = self.cache_tokens - self._cache_tokens
        over += sum(kept.length for kept in self._kept.values() if kept.cache is not None)
        for name, kept in self._kept.items():
            if over > 0 and kept.cache is not None:
                self._kept[name] = replace(kept, cache=None)
                over -= kept.length

    # -- weights -------------------------------------------------------------------------------------

    @torch.inference_mode()
    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        newest = self._versions[max(self._versions)].rows.decoder
        scored = []
        for first in range(0, len(sequences), self._slots):
            scored += score_by_steps(Rows(newest, self.shapes), sequences[first : first + self._slots])
        return scored

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        held = self._versions.get(version)
        if held is None:
            idle = [number for number in self._versions if not self._uses(number)]
            if not idle and len(self._versions) == self._most_versions:
                raise EngineBusyError(
                    f"version {version} cannot be loaded while sequences of {', '.join(map(str, self._versions))} are "
                    "decoded"
                )
            if not idle:
                self._versions[version] = self._another(weights)
                return
            self._versions[min(idle)].places.fill(weights)
            self._forget(min(idle))
            self._versions[version] = self._versions.pop(min(idle))
        elif self._uses(version):
            raise EngineBusyError(f"version {version} cannot be loaded again while sequences of it are decoded")
        else:
            held.places.fill(weights)
            self._forget(version)

    def _uses(self, version: int) -> bool:
        """Whether something is decoded with it, or waits for it."""
        waits = any(sequence.request.version == version for sequence in self._waiting)
        return waits or bool(self._versions[version].rows.live)

    def _forget(self, version: int) -> None:
        """Weights are replaced: caches that they made are worth nothing."""
        self._kept = {name: kept for name, kept in self._kept.items() if kept.version != version}
        self._versions[version].rows.forget_prompts(lambda _: False)

    def _another(self, weights: Mapping[str, torch.Tensor]) -> _Version:
        """Memory for one more version, with these weights."""
        first = next(iter(self._versions.values()))
        decoder, places = copy.deepcopy((first.rows.decoder, first.places))
        places.fill(weights)
        return _Version(Rows(decoder, self.shapes, self._end_ids), places)

    def sleep(self) -> None:
        if self._decoded or self._waiting:
            return
        for version in self._versions.values():
            version.rows.clear()
        self._kept = {name: replace(kept, cache=None) for name, kept in self._kept.items()}


def _independent_shapes(decoder: Decoder, slots: int) -> tuple[ProductShapes, bool]:
    """The shapes in which this machine computes every sequence as if it were alone, and whether there are any."""
    free = ProductShapes()
    tried = [free] if decoder.device.type == "cuda" else [free, ProductShapes(padded(slots), CHUNK)]
    return next(((shapes, True) for shapes in tried if is_independent(decoder, shapes)), (free, False))
