"""What every recipe's run has in common: its folder, its header, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from ..config import RunConfig
from ..data.loop import ManifestRow
from ..data.state import LoopState, TrainState
from ..errors import ProaError
from ..loop import Saver
from ..record.run_folder import RunFolder, refuse_used


class Job(Protocol):
    """A run put together and ready to go."""

    @property
    def began(self) -> bool:
        """Whether training has started; what was refused before leaves no folder."""

    def train(self, folder: RunFolder) -> TrainState: ...

    def summary(self) -> dict[str, Any]:
        """What the header says of how far the run came."""

    def close(self) -> None:
        """Let go of what the run held."""


def carry_out(config: RunConfig, build: Callable[[], Job]) -> TrainState:
    """Put the run together, make its folder, train in it, and leave a header that says how it ended.

    What can be wrong with a configuration is found before training starts; no folder is left then.
    """
    refuse_used(config.folder)
    job = build()
    try:
        return _train(config, job)
    finally:
        job.close()


def _train(config: RunConfig, job: Job) -> TrainState:
    folder = RunFolder.create(config.folder, config.model_dump(mode="json"))
    try:
        state = job.train(folder)
    except BaseException as error:
        if isinstance(error, ProaError) and not job.began:
            folder.discard()
            raise
        interrupted = not isinstance(error, Exception)
        reason = "interrupted" if interrupted else f"{type(error).__name__}: {error}"
        ending = {"status": "cancelled" if interrupted else "failed", "stop_reason": reason}
        folder.update(**job.summary() | ending | {"ended": round(time.time(), 3)})
        raise
    folder.update(**job.summary() | {"status": "completed", "ended": round(time.time(), 3)})
    return state


def final_saver(folder: Path, save: Callable[[Path], None]) -> Saver:
    """Writes the final weights to `model/` before training ends, so that `checkpoint_saved` can tell of them."""

    def write(name: str, state: LoopState) -> ManifestRow:
        save(folder / "model")
        return ManifestRow(
            name,
            state.global_step - 1,
            state.epoch,
            sampler_path="model",
            step=state.global_step,
            policy_version=state.policy_version,
            metrics=dict(state.metrics),
        )

    return Saver(write)


def state_summary(state: LoopState, evals: Iterable[str], callback_errors: dict[str, int]) -> dict[str, Any]:
    """What a header says of any loop."""
    return {
        **({"stop_reason": state.stop_reason} if state.stop_reason else {}),
        "stopped_by": state.stopped_by,
        "steps_run": state.global_step,
        "evals": _evals_in(state.metrics, evals),
        "callback_errors": callback_errors,
    }


def _evals_in(metrics: dict[str, Any], names: Iterable[str]) -> dict[str, dict[str, float]]:
    """The last scores of each eval, as the state's metrics hold them."""
    return {
        name: {key.removeprefix(f"{name}."): value for key, value in metrics.items() if key.startswith(f"{name}.")}
        for name in names
    }
