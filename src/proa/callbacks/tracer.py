"""Prints every moment as it fires, indented by nesting: to see what a run does."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from time import perf_counter
from typing import IO, Any

from ..lifecycle.hooks import EveryMoment, unknown_event
from ..lifecycle.moments import MOMENTS, EventName
from ..lifecycle.policy import ErrorPolicy, Priority
from ..visible import single_line

_SHOWN = (
    "episode",
    "epoch",
    "step_idx",
    "eval_name",
    "version",
    "seconds",
    "group_name",
    "maker",
    "reason",
    "exception",
)


class EventTracer(EveryMoment):
    """Prints each moment with its time and the small items of its payload, and keeps their names in `events`.

    >>> from proa import CallbackManager, TrainState
    >>> manager = CallbackManager([EventTracer(times=False)])
    >>> manager.fire("epoch_start", TrainState(), epoch=0)
    epoch_start epoch=0
    >>> manager.fire("step_end", TrainState(global_step=1))
      step_end step_idx=0
    """

    priority = Priority.METRICS + 1  # first, so that the output of others follows the moment
    error_policy = ErrorPolicy.DISABLE
    unread = frozenset({"batch", "experience", "gradients", "predictions"})

    def __init__(self, *, only: Collection[str] | None = None, file: IO[str] | None = None, times: bool = True) -> None:
        self.events: list[EventName] = []
        for event in only or ():
            if event not in MOMENTS:
                unknown_event(event)
        self._only = only
        self._file = file
        self._times = times
        self._open: list[str] = []
        self._begun = perf_counter()

    def on_moment(self, event: EventName, payload: Mapping[str, Any]) -> None:
        start = f"{event.removesuffix('_end')}_start"
        if event.endswith("_end") and start in self._open:
            del self._open[self._open.index(start) :]
        if self._only is None or event in self._only:
            self.events.append(event)
            items = "".join(f" {name}={_short(payload[name])}" for name in _SHOWN if payload.get(name) is not None)
            clock = f"{perf_counter() - self._begun:9.3f} s  " if self._times else ""
            line = f"{clock}{'  ' * len(self._open)}{event}{single_line(items)}"
            print(line, file=self._file or sys.stdout, flush=True)
        if event.endswith("_start") and f"{event.removesuffix('_start')}_end" in MOMENTS:
            self._open.append(event)


def _short(value: object) -> str:
    if isinstance(value, BaseException):
        return f"{type(value).__name__}({value})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
