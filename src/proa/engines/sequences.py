"""A sequence on its way through an engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..data.sampling import FinishReason
from .protocol import Progress, Request
from .streams import uniforms

_DRAWN = 64
"""So many random numbers are drawn together."""


@dataclass(frozen=True, slots=True)
class Given:
    """Tokens that were not sampled: their cache comes from a pass over all of them."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens that were sampled: their cache comes from decode steps, one by one, whenever it is made."""

    tokens: tuple[int, ...]


Segment: TypeAlias = Given | Sampled
Group: TypeAlias = tuple[str, tuple[int, ...]]
SamplingRule: TypeAlias = tuple[float, float, int, float, float]


@dataclass(eq=False, slots=True)
class DecodedSequence:
    """What an engine knows of a request: what is in the cache, what is still to be put there, and what came of it."""

    request: Request
    segments: Sequence[Segment]
    """All that it consists of before its own samples."""
    todo: deque[Segment] = field(default_factory=deque)
    """Segments that are not in the cache yet. It samples when there are none."""
    forced: deque[int] = field(default_factory=deque)
    """What is left of a sampled segment that is put into the cache again."""
    cached: object | None = None
    """The cache that it begins with, until it has a row."""
    length: int = 0
    """Tokens whose keys and values are in the cache."""
    next_token: int = 0
    """Chosen, and not in the cache yet."""
    sampled: list[int] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    """The tokens that a repetition penalty counts, those of the requests that it continues too; empty without one."""
    finish_reason: FinishReason | None = None
    settings: SamplingRule = field(init=False)
    """What decides how its next token is chosen from logits."""
    is_penalised: bool = field(init=False)
    """Whether tokens that it has already are less likely to come again."""
    _draws: list[float] = field(default_factory=list)
    """Some numbers of its random stream."""
    _reported: int = 0
    _log_probs: list[float] = field(default_factory=list)
    """Of what was sampled since progress was last taken."""

    def __post_init__(self) -> None:
        # Asked for at every token, so they are not computed then.
        sampling = self.request.sampling
        self.settings = (
            sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty,
        )  # fmt: skip
        self.is_penalised = sampling.repetition_penalty != 1
        if self.is_penalised:
            self.seen.update(*(segment.tokens for segment in self.segments))

    @property
    def longest(self) -> int:
        """The most tokens that it may come to have in the cache."""
        given = sum(len(segment.tokens) for segment in self.segments)
        return given + self.request.sampling.max_new_tokens

    @property
    def group(self) -> Group:
        """Whose prompt it shares: those of a group that begin alike; one without a group shares with nobody."""
        return self.request.group or f"alone {self.request.id}", self.segments[0].tokens

    @property
    def samples_next(self) -> bool:
        """Whether the next token is its own."""
        return not self.todo and not self.forced

    def draw(self) -> float:
        """The random number that its next token follows from."""
        place = len(self.sampled)
        if place % _DRAWN == 0 or not self._draws:
            self._draws = uniforms([self.request.seed], _DRAWN, place - place % _DRAWN)[0].tolist()
        return self._draws[place % _DRAWN]

    def choose(self, token: int, log_prob: float, *, is_end: bool) -> None:
        """Take its next token."""
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
        """What was sampled since this was last asked; None if nothing was."""
        if self._reported == len(self.sampled):
            return None
        tokens, self._reported = tuple(self.sampled[self._reported :]), len(self.sampled)
        log_probs, self._log_probs = tuple(self._log_probs), []
        return Progress(self.request.id, tokens, log_probs, self.request.version, self.finish_reason)
