"""What a pool asks the host of environments: plain values, sent to another process or handed to a thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .protocol import Message


@dataclass(frozen=True, slots=True)
class Deadlines:
    """In seconds."""

    call: float
    """Of one tool call."""
    step: float
    """Of one reset, step or close."""


@dataclass(frozen=True, slots=True)
class Begin:
    trajectory: int
    row: Mapping[str, Any]
    seed: int


@dataclass(frozen=True, slots=True)
class Take:
    """A step."""

    trajectory: int
    message: Message


@dataclass(frozen=True, slots=True)
class Score:
    """The reward of an environment that gives one at the end, for a trajectory that ended otherwise."""

    trajectory: int


@dataclass(frozen=True, slots=True)
class RunAgent:
    trajectory: int
    base_url: str
    api_key: str
    row: Mapping[str, Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class Close:
    trajectory: int


@dataclass(frozen=True, slots=True)
class CloseAll:
    pass


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for the answer to a question any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered at once, by a loop that turns."""

    patience: float
    """After so many seconds in which its loop does not turn, a worker process ends itself."""


Question: TypeAlias = Begin | Take | Score | RunAgent | Close | CloseAll | Cancel | Ping
Answer: TypeAlias = dict[str, Any]
"""As JSON. With `failed` it says why there is none."""


def failed(reason: str, ending: str = "tool_failed") -> Answer:
    return {"failed": reason, "ending": ending}
