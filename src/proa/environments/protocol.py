"""What an environment is: it begins with messages, and answers each of the model's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Message: TypeAlias = Mapping[str, Any]
"""A chat message as chat templates take it: `role`, `content`, and for the model's `tool_calls`."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a trajectory begins."""

    messages: Sequence[Message]
    tools: Sequence[Callable[..., Any] | Mapping[str, Any]] = ()
    """What the model may call, for the chat template: typed functions, or their JSON schemas."""


@dataclass(frozen=True, slots=True)
class Step:
    """What comes of one message of the model."""

    messages: Sequence[Message] = ()
    """What it is told before its next turn."""
    reward: float | None = None
    """For this turn; the trajectory's is the sum. None gives nothing, which is not the same as 0: a trajectory without
    any reward is left out, unless a reward function scores it."""
    done: bool = False
    tool_calls: int = 0
    """How many calls the message had."""
    tool_errors: int = 0
    """How many of these were not valid or raised."""


class Environment(Protocol):
    """One trajectory's surroundings. Methods may be `async`; each instance has one trajectory, from `reset` to `close`.

    `reset` may also return the first message as text, one message or a list of them, or None for the row's own prompt.
    `step` may also return text, which the model is told as the user's message, one message or a list of them, a dict
    with the fields of a `Step`, or None where it is done. Anything else is refused: a tuple of several things could
    mean many. With a class attribute `deterministic = False` what it answers is written to the journal, for it may
    answer otherwise next time.
    """

    def reset(self, row: Mapping[str, Any], *, seed: int) -> Start | Awaitable[Start]:
        """Begin with a row of the task: its prompt and its columns. The seed is the same for all samples of a row."""
        ...

    def step(self, message: Message) -> Step | Awaitable[Step]: ...

    def close(self) -> Awaitable[None] | None:
        """Called once, whatever happened."""
        ...
