"""What a run is to whoever starts it, whatever it trains and wherever."""

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
    """A run put together and ready to go."""

    @property
    def inputs(self) -> Inputs:
        """What it works on."""

    def train(self, folder: RunFolder, resumption: Resumption | None, interruption: Interruption) -> LoopState:
        """Train to the end. `manager.begin_training()` comes when nothing can be refused any more and callbacks have
        their saved state."""

    def summary(self) -> dict[str, Any]:
        """What the header says of how far the run came."""


def state_summary(state: LoopState, evals: Iterable[str], callback_errors: dict[str, int]) -> dict[str, Any]:
    """What a header says of any loop."""
    return {
        **({"stop_reason": state.stop_reason} if state.stop_reason else {}),
        "stopped_by": state.stopped_by,
        "steps_run": state.global_step,
        "evals": _latest_evals(state.metrics, evals),
        "callback_errors": callback_errors,
    }


def first_errors_entry(managers: Iterable[CallbackManager]) -> dict[str, Any]:
    """What the first failure of each callback said, where some failed; `callback_errors` counts them."""
    found: dict[str, str] = {}
    for manager in managers:
        found = manager.first_errors | found
    return {"first_callback_errors": found} if found else {}


def engine_entry(kind: str, independent: Iterable[bool | None]) -> dict[str, Any]:
    """What engine made the samples, and whether none of their bits depended on what else was decoded; nothing if no
    maker had one."""
    known = [one for one in independent if one is not None]
    return {"engine": {"kind": kind, "independent": all(known)}} if known else {}


def performance_entry(performance: Mapping[str, Performance]) -> dict[str, Any]:
    """What a header says of the throughput of each actor, where evaluators measured it."""
    return {"performance": {name: one.to_dict() for name, one in performance.items()}} if performance else {}


def _latest_evals(metrics: dict[str, Any], names: Iterable[str]) -> dict[str, dict[str, float]]:
    """The last scores of each eval, as the state's metrics hold them."""
    return {
        name: {key.removeprefix(f"{name}."): value for key, value in metrics.items() if key.startswith(f"{name}.")}
        for name in names
    }
