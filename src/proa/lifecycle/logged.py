"""`LoggedMetrics`: brings what hooks log into the rows of their steps.

A value that is there before `step_end` fires is in the step's row. A later one (logged at `step_end`, after an eval, at
the end of training, or added to `metrics` by a hook that runs after the record) follows by the moment
`metrics_logged`, which record, loggers and console hear: a further row of the same step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ..data.state import TrainState
from .manager import CallbackManager
from .policy import Priority


class LoggedMetrics:
    """The logged metrics of one trainer, whose hooks are those of one manager."""

    def __init__(self, manager: CallbackManager, state: TrainState) -> None:
        self._manager = manager
        self._state = state
        self._recorded: dict[str, Any] | None = None
        self._is_noting = False

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """While inside, what is logged at `train_end` reaches loggers before they close their run."""
        self._manager.on("train_end", priority=Priority.LOGGING + 1, uses_asyncio=False)(self.write_before_loggers)
        try:
            yield
        finally:
            self._manager.remove(self.write_before_loggers)
            if self._is_noting:
                self._manager.remove(self.note_recorded)
                self._is_noting = False

    def join(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The metrics of a step that is done, with what was logged before, for `step_end`."""
        if not self._is_noting and self._manager.wants("step_end", "metrics"):
            self._manager.on("step_end", priority=Priority.RECORD, uses_asyncio=False)(self.note_recorded)
            self._is_noting = True
        return self._state.join_logged(metrics)

    def follow(self, step_idx: int, metrics: Mapping[str, Any] | None = None) -> None:
        """After a moment: fire `metrics_logged` with what was logged since. `metrics` are those that `step_end` had."""
        state, recorded = self._state, self._recorded
        if metrics is not None and recorded is not None:
            self._recorded = None
            state.metrics.update(recorded)
            if late := changed_entries(recorded, metrics):
                state.add_logged(late)
        if state.has_logged:
            self._manager.fire("metrics_logged", state, step_idx, state.take_logged())

    def note_recorded(self, state: TrainState, metrics: dict[str, Any]) -> None:
        """Called at `step_end` with the record: keep the metrics that the step's row has."""
        if state is self._state:
            self._recorded = dict(metrics)

    def write_before_loggers(self, state: TrainState) -> None:
        """Called at `train_end` after all hooks but those of loggers."""
        if state is self._state:
            self.follow(state.global_step - 1)


def changed_entries(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are new, or have another value.

    >>> changed_entries({"loss": 1.0, "kl": 0.1}, {"loss": 1.0, "kl": 0.2, "mine": 3})
    {'kl': 0.2, 'mine': 3}
    """
    return {name: value for name, value in after.items() if name not in before or _differ(before[name], value)}


def _differ(one: Any, other: Any) -> bool:
    return one is not other and not (type(one) is type(other) and isinstance(one, int | float | str) and one == other)
