"""`Job`: a run of any kind, on any runtime, as the code that starts it sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ..actors.interruption import Interruption
from ..callbacks.performance import Performance
from ..data.state import LoopState
from ..lifecycle.manager import CallbackManager
from ..record.run_folder import RunFolder
from ..resume.inputs import Inputs
from ..resume.resuming import Resumption


class Job(Protocol):
    """A run that is built and ready to train."""

    @property
    def inputs(self) -> Inputs:
        """The digests of its data, rewards and models."""

    def train(self, folder: RunFolder, resumption: Resumption | None, interruption: Interruption) -> LoopState:
        """Train to the end. It calls `manager.begin_training()` once everything is checked and callbacks have their
        saved state."""

    def summary(self) -> dict[str, Any]:
        """The header's entries about the progress of the run."""


def state_summary(state: LoopState, evals: Iterable[str], callback_errors: dict[str, int]) -> dict[str, Any]:
    """The header's entries about any loop."""
    metrics = state.metrics
    return {
        **({"stop_reason": state.stop_reason} if state.stop_reason else {}),
        "stopped_by": state.stopped_by,
        "steps_run": state.global_step,
        "evals": {
            name: {key.removeprefix(f"{name}."): value for key, value in metrics.items() if key.startswith(f"{name}.")}
            for name in evals
        },
        "callback_errors": callback_errors,
    }


def first_errors_entry(managers: Iterable[CallbackManager]) -> dict[str, Any]:
    """The message of the first failure of each callback that failed; `callback_errors` counts the failures."""
    found: dict[str, str] = {}
    for manager in managers:
        found = manager.first_errors | found
    return {"first_callback_errors": found} if found else {}


def engine_entry(kind: str, independent: Iterable[bool | None]) -> dict[str, Any]:
    """The engine that made the samples, and whether their bits were independent of what else it decoded; empty without
    a maker."""
    known = [one for one in independent if one is not None]
    return {"engine": {"kind": kind, "independent": all(known)}} if known else {}


def performance_entry(performance: Mapping[str, Performance]) -> dict[str, Any]:
    """The throughput of each actor, if performance evaluators measured it."""
    return {"performance": {name: one.to_dict() for name, one in performance.items()}} if performance else {}
