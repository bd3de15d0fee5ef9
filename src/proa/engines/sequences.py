"""A sequence being decoded."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..data.sampling import FinishReason
from .protocol import Progress, Request
from .streams import uniforms

_DRAWN = 256
"""How many random numbers are drawn together."""


@dataclass(frozen=True, slots=True)
class Given:
    """Tokens that were not sampled; their cache comes from one pass."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampled tokens; their cache always comes from single decode steps."""

    tokens: tuple[int, ...]


Segment: TypeAlias = Given | Sampled
Group: TypeAlias = tuple[str, tuple[int, ...]]
SamplingRule: TypeAlias = tuple[float, float, int, float, float]


@dataclass(eq=False, slots=True)
class DecodedSequence:
    """The state of a request in an engine: its cached tokens, those still to be computed, and its samples."""

    request: Request
    segments: Sequence[Segment]
    """The segments before its own samples."""
    todo: deque[Segment] = field(default_factory=deque)
    """Segments that are not in the cache yet; it samples when there are none."""
    forced: deque[int] = field(default_factory=deque)
    """The remaining tokens of a sampled segment whose cache is being rebuilt."""
    cached: object | None = None
    """The cache that it starts with, until it has a row."""
    length: int = 0
    """The number of tokens in the cache."""
    next_token: int = 0
    """The last chosen token, which is not in the cache yet."""
    sampled: list[int] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    """The tokens for a repetition penalty, including those of continued requests; empty without a penalty."""
    finish_reason: FinishReason | None = None
    settings: SamplingRule = field(init=False)
    """The settings for choosing its next token from logits."""
    is_penalised: bool = field(init=False)
    """Whether it has a repetition penalty."""
    _draws: list[float] = field(default_factory=list)
    """Drawn numbers of its random stream."""
    _log_probs: list[float] = field(default_factory=list)
    """Log-probabilities of tokens sampled since the last progress."""

    def __post_init__(self) -> None:
        # Computed once, as they are read at every token.
        sampling = self.request.sampling
        self.settings = (
            sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty,
        )  # fmt: skip
        self.is_penalised = sampling.repetition_penalty != 1
        if self.is_penalised:
            self.seen.update(*(segment.tokens for segment in self.segments))

    @property
    def longest(self) -> int:
        """The most tokens that it may have in the cache."""
        given = sum(len(segment.tokens) for segment in self.segments)
        return given + self.request.sampling.max_new_tokens

    @property
    def group(self) -> Group:
        """The key for sharing prompts: group and first tokens; a request without a group shares with none."""
        return self.request.group or f"alone {self.request.id}", self.segments[0].tokens

    @property
    def samples_next(self) -> bool:
        """Whether its next token is sampled, not given."""
        return not self.todo and not self.forced

    def draw(self) -> float:
        """The random number for its next token."""
        place = len(self.sampled)
        if place % _DRAWN == 0 or not self._draws:
            self._draws = uniforms([self.request.seed], _DRAWN, place - place % _DRAWN)[0].tolist()
        return self._draws[place % _DRAWN]

    def choose(self, token: int, log_prob: float, *, is_end: bool) -> None:
        """Append its next token."""
        if not math.isfinite(log_prob):
            raise FloatingPointError("the engine's logits are not finite: the weights it was given are damaged")
        self.next_token = token
        self.sampled.append(token)
        if self.is_penalised:
            self.seen.add(token)
        self._log_probs.append(log_prob)
        if is_end or token in self.request.stops:
            self.finish_reason = "stop"
        elif len(self.sampled) == self.request.sampling.max_new_tokens:
            self.finish_reason = "length"

    def take_progress(self) -> Progress | None:
        """The tokens sampled since the last call; None if there are none."""
        if not self._log_probs:
            return None
        log_probs, tokens = tuple(self._log_probs), tuple(self.sampled[-len(self._log_probs) :])
        self._log_probs.clear()
        return Progress(self.request.id, tokens, log_probs, self.request.version, self.finish_reason)
