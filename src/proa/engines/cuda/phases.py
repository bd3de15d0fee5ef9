"""What a sequence goes through on a device: passes over given tokens, and decode steps in between.

The last token before each sample is decoded, never part of a pass: so a sequence always samples from a decode step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ..sequences import Given, Segment


@dataclass(frozen=True, slots=True)
class Pass:
    """Tokens that are put into the cache together."""

    tokens: tuple[int, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Steps:
    """Decode steps, of which the first ones choose what they are told to; the rest are sampled, if there is a rest."""

    token: int
    """That the first step puts into the cache."""
    position: int
    forced: tuple[int, ...]
    samples: bool


Phase: TypeAlias = Pass | Steps


def phases_of(todo: Iterable[Segment], cached: int = 0, last: int | None = None) -> deque[Phase]:
    """From a cache of so many tokens, after which `last` was sampled, through these segments to sampling.

    >>> list(phases_of([Given((4, 5, 6))]))
    [Pass(tokens=(4, 5), position=0), Steps(token=6, position=2, forced=(), samples=True)]
    """
    phases: deque[Phase] = deque()
    token, position = last, cached
    forced: tuple[int, ...] = ()
    for segment in todo:
        if not isinstance(segment, Given):
            forced += segment.tokens
            continue
        if token is not None:  # what was sampled before it comes into the cache by steps
            phases.append(Steps(token, position, (*forced, segment.tokens[0]), samples=False))
            position += len(forced) + 1
            forced = ()
        phases.append(Pass(segment.tokens[:-1], position))
        token, position = segment.tokens[-1], position + len(segment.tokens) - 1
    assert token is not None
    phases.append(Steps(token, position, forced, samples=True))
    return phases
