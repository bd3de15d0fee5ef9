"""The mutable state of a training run, as every hook sees it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import LogContext


log = logging.getLogger("proa.callbacks")

ROW_KEYS = ("step", "epoch", "time")
"""Keys of a row of the record beside metrics; no metric can have these names."""


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
    logged: dict[str, Any] = field(default_factory=dict, kw_only=True, repr=False)
    """The last value of each metric that hooks logged."""
    exception: BaseException | None = field(default=None, kw_only=True, repr=False, compare=False)
    """The exception that is ending the run: an `*_end` that fires while it is set was cut short."""
    _unwritten: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Logged metrics that are in no row yet."""
    _step_metrics: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The last step's own metrics."""
    _clashes: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    """Names that were warned about."""

    def log(self, name: str, value: Any) -> None:
        """Log a metric of this step from a hook: a number, also from torch or numpy.

        What is logged before `step_end` fires is in the step's own row. What is logged at `step_end` or later follows
        as a further row of the same step. Logging a name again replaces its value. A metric that the step itself
        reports is not replaced: a warning says so, and the logged value is dropped.

        >>> state = TrainState()
        >>> state.log("temperature", 0.7)
        >>> state.metrics
        {'temperature': 0.7}
        """
        number = metric_number(name, value)
        if name in self._step_metrics and name not in self.logged:
            self._warn_clash(name)
        else:
            self.add_logged({name: number})

    def add_logged(self, values: Mapping[str, Any]) -> None:
        """Add logged metrics that were checked elsewhere, or that a hook added to a step's `metrics`."""
        self.metrics.update(values)
        self.logged.update(values)
        self._unwritten.update(values)

    def take_logged(self) -> dict[str, Any]:
        """The metrics logged since the last call, which the caller must write."""
        if not self._unwritten:
            return {}
        taken, self._unwritten = self._unwritten, {}
        return taken

    def join_logged(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """A step's own metrics, with what was logged since the last row."""
        self._step_metrics = metrics
        logged = self.take_logged()
        for name in logged.keys() & metrics.keys():
            del logged[name]
            self.logged.pop(name, None)
            self._warn_clash(name)
        return {**metrics, **logged} if logged else metrics

    @property
    def has_logged(self) -> bool:
        """Whether logged metrics are waiting for a row."""
        return bool(self._unwritten)

    def _warn_clash(self, name: str) -> None:
        if name not in self._clashes:
            self._clashes.add(name)
            log.warning("%r is a metric of the step itself: what a hook logs under this name is dropped", name)

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
    checkpoint_mgr: Any = field(default=None, repr=False)
    ctx: LogContext | None = field(default=None, repr=False)
    rank: int = 0
    world_size: int = 1
    policy_version: int = 0
    resumed_from: str | None = None
    making_seconds: float | None = None
    """In a maker: the time to make the batch whose hooks fire, if it was made before."""

    @property
    def run_dir(self) -> Path | None:
        """The run's folder, with its record."""
        return self.output_dir

    @property
    def model_dir(self) -> Path | None:
        """The Hugging Face folder of the final weights and the tokenizer, once the run is complete."""
        return None if self.output_dir is None else self.output_dir / "model"

    @property
    def stop_requested(self) -> bool:
        return self.should_stop

    def request_stop(self, reason: str | None = None) -> None:
        """The same as `stop_training`."""
        self.stop_training(reason, by=_caller_name())


_HANDLES = frozenset(
    {"exception", "checkpoint_mgr", "ctx", "making_seconds", "_unwritten", "_step_metrics", "_clashes"}
)


def metric_number(name: str, value: Any) -> float | int | bool:
    """The value of a metric as a Python number; raises for anything else, and for a name that it cannot have."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a metric must be a text that is not empty, not {name!r}")
    if name in ROW_KEYS:
        raise ValueError(f"a metric cannot be named {name!r}, which every row has already: choose another name")
    if not isinstance(value, bool | int | float) and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()  # a tensor, or a number of numpy
    if not isinstance(value, bool | int | float):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else f" {value!r:.40}"
        raise TypeError(
            f"the metric {name!r} must be a number, not the {type(value).__name__}{shape}: log e.g. its mean, or one "
            "metric for each of its parts"
        )
    return value


def _caller_name() -> str:
    """The function that requested the stop, as `Class.method`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_qualname.rpartition("<locals>.")[2]
