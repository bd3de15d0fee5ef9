"""Facts about a sample besides its tensors."""

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
"""Endings caused by the policy, which are rewarded. The others count in the ledger under their names."""


NO_REWARD = "no_reward"
"""The ledger's reason for a sample without a reward where nothing failed."""


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """One turn of a conversation, for hooks."""

    number: int
    message: Mapping[str, Any]
    """The model's message, with its tool calls."""
    reward: float | None
    """The environment's reward for it."""
    tokens: int
    """The number of sampled tokens."""
    finish_reason: FinishReason
    version: int
    """The version of the weights."""


@dataclass(frozen=True, slots=True)
class TrajectoryFacts:
    """The outcome of a sample with an environment. Messages are plain values, as in JSON."""

    ending: Ending
    messages: tuple[Mapping[str, Any], ...] = ()
    """The conversation up to its end."""
    turns: int = 0
    turn_rewards: tuple[float | None, ...] = ()
    """The environment's reward for each turn, or None."""
    tool_calls: int = 0
    tool_errors: int = 0
    """Calls that were invalid, named no tool, or raised; the model got the error as the answer."""
    environment_tokens: int = 0
    """Tokens of the environment after the first turn."""
    environment_seconds: float = 0.0
    answers: tuple[Any, ...] = ()
    """The answers of an environment that is not deterministic, for the journal."""


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """How a sample ended and how it was scored; all optional in a user's own experience."""

    finish_reason: FinishReason | None = None
    reward_parts: Mapping[str, float | None] = field(default_factory=dict)
    """The value of each part of the reward, before its weight; None if it does not apply or failed."""
    reward_error: str | None = None
    """Why there is no reward, in words."""
    reward_failure: str | None = None
    """The reason under which the ledger counts it, e.g. `reward_failed`."""

    reward_logged: Mapping[str, float | str] = field(default_factory=dict)
    """Values that reward functions logged for it."""
    trajectory: TrajectoryFacts | None = None
    """Set if there was an environment, in the last row of the sample."""

    @property
    def is_truncated(self) -> bool:
        """Whether a limit of tokens or turns ended it."""
        if self.trajectory is not None:
            return self.trajectory.ending in ("token_limit", "max_turns")
        return self.finish_reason == "length"

    def with_failure(self, failure: str, error: str) -> SampleFacts:
        return replace(self, reward_failure=failure, reward_error=error)

    def without_failure(self) -> SampleFacts:
        return replace(self, reward_failure=None, reward_error=None)
