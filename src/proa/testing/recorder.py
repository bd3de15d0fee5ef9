"""A callback that records moments, and can misbehave at a chosen one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..lifecycle.hooks import EveryMoment
from ..lifecycle.moments import MOMENTS, EventName, Scope
from ..lifecycle.policy import Priority


@dataclass(frozen=True, slots=True)
class Fired:
    """One moment with the counters at that time."""

    event: EventName
    step_idx: int | None = None
    episode: int | None = None
    epoch: int | None = None
    global_step: int | None = None
    aborted: bool = False
    """Whether an exception was propagating when it fired."""

    def __str__(self) -> str:
        numbers = {"step_idx": self.step_idx, "episode": self.episode, "epoch": self.epoch}
        return self.event + "".join(f" {name}={value}" for name, value in numbers.items() if value is not None)


class Recorder(EveryMoment):
    """Keeps every moment of a trainer in `fired`. `act` is called at the `at`-th of them (0-based).

    Moments of makers and experiments are left out: they fire beside a trainer's, in no fixed order.
    """

    priority = Priority.METRICS + 1
    uses_asyncio = False
    unread = frozenset({"batch", "experience", "gradients"})

    def __init__(self, *, at: int = -1, act: Callable[[Any], None] | None = None) -> None:
        self.fired: list[Fired] = []
        self.acted = False
        self._at = at
        self._act = act

    @property
    def events(self) -> list[EventName]:
        return [fired.event for fired in self.fired]

    def on_moment(self, event: EventName, payload: Mapping[str, Any]) -> None:
        if MOMENTS[event].scope is not Scope.TRAINER:
            return
        state = payload["state"]
        self.fired.append(
            Fired(
                event,
                payload.get("step_idx"),
                payload.get("episode"),
                payload.get("epoch"),
                getattr(state, "global_step", None),
                getattr(state, "exception", None) is not None,
            )
        )
        if self._act is not None and len(self.fired) - 1 == self._at:
            self.acted = True
            self._act(state)


class Witness(Recorder):
    """A recorder that is called last, to see that an earlier failure did not skip it."""

    priority = Priority.LOGGING - 1
