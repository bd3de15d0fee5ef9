"""What is known about a sample besides its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from .sampling import FinishReason

Ending: TypeAlias = Literal[
    "finished", "max_turns", "token_limit", "tool_failed", "timed_out", "grader_failed", "cancelled"
]
"""How a trajectory of several turns ended."""
ENDINGS: tuple[Ending, ...] = get_args(Ending)
OWN_ENDINGS: tuple[Ending, ...] = ("finished", "max_turns", "token_limit")
"""Those that are the policy's own: only these are rewarded. The others count in the ledger under their names."""


NO_REWARD = "no_reward"
"""The reason in the ledger for a sample that nobody scored, though nothing failed."""


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """One turn of a conversation, for hooks."""

    number: int
    message: Mapping[str, Any]
    """What the model said, with its calls of tools."""
    reward: float | None
    """What the environment gave for it."""
    tokens: int
    """How many were sampled."""
    finish_reason: FinishReason
    version: int
    """Of the weights."""


@dataclass(frozen=True, slots=True)
class TrajectoryFacts:
    """What became of a sample that had an environment. Its messages are plain values, as JSON has them."""

    ending: Ending
    messages: tuple[Mapping[str, Any], ...] = ()
    """The whole conversation, as far as it went."""
    turns: int = 0
    turn_rewards: tuple[float | None, ...] = ()
    """What the environment gave for each turn; None where it gave nothing."""
    tool_calls: int = 0
    tool_errors: int = 0
    """Calls that were not valid, named no tool, or raised: the model got the error as the answer."""
    environment_tokens: int = 0
    """Tokens of what the environment said after the first turn."""
    environment_seconds: float = 0.0
    answers: tuple[Any, ...] = ()
    """Of an environment that may answer differently next time: what it answered, for the journal."""


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """How a sample ended and how it was scored. A user's own experience need not say any of it."""

    finish_reason: FinishReason | None = None
    reward_parts: Mapping[str, float | None] = field(default_factory=dict)
    """What each part of the reward gave, before its weight; None where it does not apply or failed."""
    reward_error: str | None = None
    """Why there is no reward, in words."""
    reward_failure: str | None = None
    """The reason under which the ledger counts it, e.g. `reward_failed`."""

    reward_logged: Mapping[str, float | str] = field(default_factory=dict)
    """What reward functions logged of it."""
    trajectory: TrajectoryFacts | None = None
    """Where there was an environment; in the last row of a sample that has several."""

    @property
    def is_truncated(self) -> bool:
        """Whether a limit ended it, of tokens or of turns."""
        if self.trajectory is not None:
            return self.trajectory.ending in ("token_limit", "max_turns")
        return self.finish_reason == "length"

    def with_failure(self, failure: str, error: str) -> SampleFacts:
        return replace(self, reward_failure=failure, reward_error=error)

    def without_failure(self) -> SampleFacts:
        return replace(self, reward_failure=None, reward_error=None)
