"""Where sequences are in the cache and in rows, and what was launched for them."""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from ...data.sampling import Sampling
from ..sequences import DecodedSequence
from .passes import Cache, PromptPass, StepPass
from .phases import Phase, Steps


@dataclass(eq=False)
class CachedPrompt:
    """A prompt in the cache, all but its last token, and the number of sequences that use it."""

    tokens: tuple[int, ...]
    blocks: list[int]
    users: int = 0
    is_launched: bool = False
    """Whether its pass is under way or done."""

    @property
    def cached(self) -> int:
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Tokens of one sequence in a pass, their position, and the sequence's blocks of the cache."""

    tokens: tuple[int, ...]
    position: int
    prompt: int
    """The number of tokens in blocks of a shared prompt, which come first."""
    blocks: Sequence[int]


@dataclass(frozen=True, eq=False)
class KeptBlocks:
    """The cache of a sequence that ended: all but its last token."""

    prompt: CachedPrompt
    blocks: list[int]
    tokens: int
    last: int


@dataclass(eq=False)
class Placement:
    """The place of a sequence, and its remaining phases, of which the first is under way."""

    prompt: CachedPrompt
    blocks: list[int]
    phases: deque[Phase]
    row: int | None = None
    """None until it decodes: its prompt may be computed before a row is free."""
    forced: int = 0
    """The number of next tokens that are given."""


@dataclass(frozen=True)
class LaunchedStep:
    """A step that is under way: its results, the event when they are there, and its sequences."""

    said: torch.Tensor
    done: torch.cuda.Event
    sequences: list[tuple[int, DecodedSequence]]


@dataclass(frozen=True)
class LaunchedPass:
    """Sequences whose given tokens are being computed, and the event when that is done."""

    done: torch.cuda.Event
    sequences: list[DecodedSequence]


@dataclass
class RecordedPasses:
    """The passes over one piece of memory, recorded; their buffers are the memory that the graphs write to."""

    cache: Cache
    step: StepPass
    prompts: dict[int, PromptPass]
    step_graph: torch.cuda.CUDAGraph
    prompt_graphs: dict[int, torch.cuda.CUDAGraph]
    penalised_graph: torch.cuda.CUDAGraph | None = None
    """A step in which rows may have a repetition penalty; recorded when a request first has one."""


@dataclass
class RowInput:
    """The input of a row for a phase."""

    row: int
    steps: Steps
    prompt: int
    blocks: Sequence[int]
    seed: int
    sampling: Sampling
    seen: Collection[int] = ()
    """Tokens for a repetition penalty so far; the device adds those that the row decodes."""

    @property
    def state(self) -> list[int]:
        forced, sampling = len(self.steps.forced), self.sampling
        limit = forced + (sampling.max_new_tokens if self.steps.samples else 0)
        return [
            self.steps.token, self.steps.position, self.prompt, self.seed, 0, forced, limit,
            _bits(sampling.temperature), sampling.top_k, _bits(sampling.top_p),
            _bits(math.log(sampling.min_p) if sampling.min_p else -math.inf), _bits(sampling.repetition_penalty),
        ]  # fmt: skip


def _bits(number: float) -> int:
    """The bits of a float64, as an integer."""
    return int(struct.unpack("q", struct.pack("d", number))[0])
