"""The mutable state of a training run, as every hook sees it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import LogContext


class StopTraining(Exception):  # noqa: N818 - a request, not an error; the name is public
    """Raise it from a hook or a training step to end training cleanly after the current step."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class TrainState:
    """Where training stands. One object serves all hooks of a run, and recipes return it.

    `step` counts within the epoch and `global_step` over the run, both in optimizer steps done.

    >>> state = TrainState(global_step=3)
    >>> state.stop_training("loss target reached")
    >>> state.should_stop, state.stop_reason
    (True, 'loss target reached')
    """

    step: int = 0
    epoch: int = 0
    global_step: int = 0
    num_epochs: int = 0
    max_steps: int = -1
    metrics: dict[str, Any] = field(default_factory=dict)
    should_stop: bool = False
    stop_reason: str | None = field(default=None, kw_only=True)
    stopped_by: str | None = field(default=None, kw_only=True)
    exception: BaseException | None = field(default=None, kw_only=True, repr=False, compare=False)
    """What is ending the run, from the moment it was raised: an `*_end` that fires while it is set was cut short."""

    def stop_training(self, reason: str | None = None, *, by: str | None = None) -> None:
        """End training after the current step, its evals and its checkpoint.

        The first request is the one that is recorded; later ones change nothing.
        """
        if self.should_stop:
            return
        self.stopped_by = by or _caller_name()
        self.stop_reason = reason or "stop requested"
        self.should_stop = True

    def to_dict(self) -> dict[str, Any]:
        """The plain values of this state; live objects (handles, exceptions) are left out."""
        return {
            f.name: dict(value) if isinstance(value, dict) else str(value) if isinstance(value, Path) else value
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), (int, float, str, dict, Path, type(None)))
            and f.name not in _HANDLES
        }

    def __setattr__(self, name: str, value: Any) -> None:
        # `state.should_stop = True` is a documented way to stop, so it too must say who asked.
        if name == "should_stop" and value and self.__dict__.get("stopped_by") is None:
            self.__dict__["stopped_by"] = _caller_name()
            if self.__dict__.get("stop_reason") is None:
                self.__dict__["stop_reason"] = "should_stop was set"
        object.__setattr__(self, name, value)


@dataclass
class LoopState(TrainState):
    """The state of a trainer's loop: a `TrainState` that also knows its run, its rank and its weights."""

    num_steps: int = 0
    episode: int = 0
    output_dir: Path | None = None
    checkpoint_mgr: Any = None
    ctx: LogContext | None = None
    rank: int = 0
    world_size: int = 1
    policy_version: int = 0
    resumed_from: str | None = None

    @property
    def stop_requested(self) -> bool:
        return self.should_stop

    def request_stop(self, reason: str | None = None) -> None:
        """The same as `stop_training`."""
        self.stop_training(reason, by=_caller_name())


_HANDLES = frozenset({"exception", "checkpoint_mgr", "ctx"})


def _caller_name() -> str:
    """The function that requested the stop, as `Class.method`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_qualname.rpartition("<locals>.")[2]
