"""Repeating a run from its seed and its journal, and comparing the weights at each of its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..config import ConfigError, RunConfig, change_run_config
from ..data.loop import ManifestRow
from ..data.state import LoopState, TrainState
from ..lifecycle.hooks import BaseCallback, Callback
from ..lifecycle.policy import Priority
from ..record.checkpoints import CheckpointManager
from ..record.journal import Journal
from ..record.run_folder import read_json
from . import job_of
from .given import Given
from .job import carry_out
from .placing import place_callbacks
from .resuming import config_in


@dataclass(frozen=True, slots=True)
class Comparison:
    """The weights after so many steps, as they were recorded and as they came out again."""

    step: int
    name: str
    recorded: str
    replayed: str

    @property
    def same(self) -> bool:
        return self.recorded == self.replayed


@dataclass(frozen=True)
class Replay:
    """What came of repeating a run."""

    folder: Path
    """Where the repeated run lies, a run like any other."""
    state: TrainState
    compared: list[Comparison]
    missing: list[str] = field(default_factory=list)
    """Checkpoints of the run at whose step the repeated one has none: those that an interrupt left, say."""

    @property
    def same(self) -> bool:
        """Whether all weights came out again, to the last bit, and there were any to compare."""
        return bool(self.compared) and all(one.same for one in self.compared)

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "steps": self.state.global_step,
            "same": self.same,
            "compared": [{**asdict(one), "same": one.same} for one in self.compared],
            "missing": self.missing,
        }


def replay(
    folder: Path | str,
    *,
    until: int | None = None,
    into: Path | str | None = None,
    flags: Sequence[str] = (),
    show: Sequence[BaseCallback] = (),
) -> Replay:
    """Repeat the run in a folder, as far as its record goes or `until` so many steps, in a folder of its own.

    The run's callbacks and evals are left out: neither changes what is learned. A stop is repeated at its step.
    """
    original = Path(folder)
    config = _repeated(config_in(original, flags), original, into)
    last = _last_step(original)
    if until is not None and not 1 <= until <= last:
        raise ConfigError(f"until {until}: the record of {original} has steps 1 to {last}")
    entries = Journal(original).read()
    with place_callbacks(config, [*show, _StopAfter(until or last)]) as listeners:
        state = carry_out(config, lambda: job_of(config, Given(), listeners, entries))
    return _compared(original, config.folder, state)


def _repeated(config: RunConfig, original: Path, into: Path | str | None) -> RunConfig:
    place = Path(into) if into is not None else _free_place(original)
    changes: dict[str, Any] = {
        "name": place.resolve().name,
        "output_dir": str(place.parent),
        "callbacks": [],
        "eval": [],
        "checkpoint.keep": 1,  # the rows of all of them stay
        "checkpoint.best": None,
        "checkpoint.background": False,
    }
    return change_run_config(config, **changes)


def _free_place(original: Path) -> Path:
    number = 1
    while (place := original.parent / f"{original.resolve().name}-replay-{number}").exists():
        number += 1
    return place


def _last_step(original: Path) -> int:
    """How far the record goes: to the end that the run had, or to its last checkpoint."""
    header = read_json(original / "run.json")
    if header.get("status") == "completed":
        return int(header["steps_run"])
    last = max((row.step for row in CheckpointManager(original).rows), default=0)
    if last == 0:
        raise ConfigError(f"{original} has no checkpoint to compare with: it ended before its first")
    return last


def _compared(original: Path, replayed: Path, state: TrainState) -> Replay:
    again = {row.step: row for row in CheckpointManager(replayed).history}
    compared, missing = [], []
    for row in CheckpointManager(original).history:
        if row.step in again:
            compared.append(Comparison(row.step, row.name, _weights_of(row), _weights_of(again[row.step])))
        elif row.step <= state.global_step:
            missing.append(row.name)
    return Replay(replayed, state, compared, missing)


def _weights_of(row: ManifestRow) -> str:
    """The digests of a checkpoint's weights, as one text."""
    names = sorted(name for name in row.digests if name.startswith("model/") and name.endswith(".safetensors"))
    return " ".join(row.digests[name] for name in names)


class _StopAfter(Callback):
    """Ends the repeated run where the first one ended, or where somebody wants to look."""

    priority = Priority.CONTROL
    uses_asyncio = False

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_step_end(self, state: LoopState, step_idx: int, batch: Any, metrics: dict[str, float]) -> None:
        if state.global_step == self._steps and state.global_step < state.max_steps:
            state.stop_training(f"replayed {self._steps} steps")
