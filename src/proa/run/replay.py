"""Repeating a run from its seed and its journal, and comparing the weights at each of its checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..callbacks.registry import changes_experience
from ..config import ConfigError, RunConfig, change_run_config, restore_run_config
from ..data.loop import ManifestRow
from ..data.state import LoopState, TrainState
from ..lifecycle.hooks import BaseCallback, Callback
from ..lifecycle.policy import Priority
from ..record.checkpoints import CheckpointError, CheckpointManager
from ..record.journal import Journal
from ..record.reading import read_run
from ..record.run_folder import libraries, read_json
from ..record.secrets import redact
from ..resume.configuration import config_changes, load_complete_config, saved_config
from ..resume.resuming import Resumption
from ..roles.given_surroundings import GivenSurroundings
from .given import Given
from .placing import place_callbacks
from .run_moments import StandaloneMoments
from .start import build_run, carry_out, template_start

LEFT_OUT = ("callbacks", "eval")
"""Sections that a replay leaves out, as they do not change what is learned; hooks that change experience stay."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The weights after a number of steps, as recorded and as replayed.

    The digests are of a checkpoint's files, or the `weights_digest` of the runs for final weights.
    """

    step: int
    name: str
    recorded: str
    replayed: str

    @property
    def same(self) -> bool:
        return self.recorded == self.replayed


@dataclass(frozen=True)
class Replay:
    """The outcome of repeating a run."""

    folder: Path
    """The folder of the repeated run, a run like any other."""
    state: TrainState
    compared: list[Comparison]
    missing: list[str] = field(default_factory=list)
    """Checkpoints for whose step the replay has none, such as one saved at an interrupt."""
    changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Changes of the configuration by flags, as {key: (before, now)}, without secrets."""
    learns_otherwise: bool = False
    """Whether one of the changes affects what is learned, so that a difference is expected."""
    other_inputs: list[str] = field(default_factory=list)
    """Differences of data, rewards and models from those of the run, in words."""
    other_libraries: list[str] = field(default_factory=list)
    """Libraries whose version differs from the run's, in words: sums may differ in their last bits, and so all
    digests."""

    @property
    def same(self) -> bool | None:
        """Whether all weights are the same, to the last bit; None if there were none to compare."""
        return all(one.same for one in self.compared) if self.compared else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "steps": self.state.global_step,
            "same": self.same,
            "compared": [{**asdict(one), "same": one.same} for one in self.compared],
            "missing": self.missing,
            "changes": {key: {"before": before, "now": now} for key, (before, now) in self.changes.items()},
            "other_inputs": self.other_inputs,
            "other_libraries": self.other_libraries,
            "difference_expected": self.learns_otherwise or bool(self.other_inputs or self.other_libraries),
        }


def replay(
    folder: Path | str,
    *,
    until: int | None = None,
    into: Path | str | None = None,
    flags: Sequence[str] = (),
    show: Sequence[BaseCallback] = (),
) -> Replay:
    """Repeat the run in a folder, to the end of its record or `until` a number of steps, in a new folder.

    The run's evals are left out, and its callbacks but for those that may change experience: the others do not change
    what is learned. A stop is repeated at its step.
    """
    original = Path(folder)
    if not (original / "run.json").is_file():
        read_run(original)  # raises, describing the folder
    changed = load_complete_config(original, flags)
    config = _repeated(changed, original, into)
    last = _last_step(original)
    if until is not None and not 1 <= until <= last:
        raise ConfigError(f"until {until}: the record of {original} has steps 1 to {last}")
    entries = Journal(original).read()
    with place_callbacks(config, [*show, _StopAfter(until or last)]) as listeners:
        recorded = {entry["uid"]: entry["answers"] for entry in entries if entry["kind"] == "environment"}
        given = Given(surroundings=GivenSurroundings(recorded=recorded))
        build = partial(build_run, config, given, listeners, entries)
        state = carry_out(config, build, StandaloneMoments(listeners, config), now=template_start(original))
    compared, missing = _compared(original, config.folder, state)
    unchanged = _config_without_flags(original, changed) if flags else changed.model_dump(mode="json")
    return Replay(
        config.folder,
        state,
        compared,
        missing,
        _changes(unchanged, changed),
        _changes_learning(unchanged, changed),
        _changed_inputs(original, config.folder),
        _changed_libraries(original),
    )


def _repeated(config: RunConfig, original: Path, into: Path | str | None) -> RunConfig:
    if into is None:
        named = (original.parent / f"{original.resolve().name}-replay-{number}" for number in itertools.count(1))
        into = next(folder for folder in named if not folder.exists())
    place = Path(into)
    changes: dict[str, Any] = {
        "name": place.resolve().name,
        "output_dir": str(place.parent),
        "eval": [],
        "callbacks": [one for one in config.model_dump(mode="json")["callbacks"] if changes_experience(one)],
        "checkpoint.keep": 1,  # the rows of all of them stay
        "checkpoint.best": None,
        "checkpoint.background": False,
    }
    return change_run_config(config, **changes)


def _last_step(original: Path) -> int:
    """The last step of the record: the run's last if it is complete, or that of its last checkpoint."""
    header = read_json(original / "run.json")
    if header.get("status") == "completed":
        return int(header["steps_run"])
    last = max((row.step for row in CheckpointManager(original).rows), default=0)
    if last == 0:
        record = read_run(original)
        goes_on = record.running and not record.cut_off
        why = "it is running, and its first is still to come" if goes_on else "it ended before its first"
        raise ConfigError(f"{original} has no checkpoint to compare with: {why}")
    return last


def _config_without_flags(original: Path, changed: RunConfig) -> dict[str, Any]:
    """The configuration as saved. (Flags may also supply secrets, which are not saved.)"""
    where = {"name": changed.name, "output_dir": str(changed.output_dir)}
    return restore_run_config(saved_config(original) | where).model_dump(mode="json")


def _changes(unchanged: dict[str, Any], config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The changes by flags, except in sections that a replay leaves out."""
    before, now = (dict(_leaves(redact(content))) for content in (unchanged, config.model_dump(mode="json")))
    keys = [key for key in {**before, **now} if key.partition(".")[0] not in LEFT_OUT]
    return {key: (before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)}


def _leaves(content: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a configuration by dotted key."""
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _changes_learning(unchanged: dict[str, Any], config: RunConfig) -> bool:
    """Whether a run with one configuration could not continue with the other."""
    try:
        config_changes(unchanged, config)
    except ConfigError:
        return True
    return False


def _compared(original: Path, replayed: Path, state: TrainState) -> tuple[list[Comparison], list[str]]:
    """The checkpoints that both have, and the names of those that the replay lacks."""
    again = {row.step: row for row in CheckpointManager(replayed).history}
    finals = _final_digest(original), _final_digest(replayed)
    compared: list[Comparison] = []
    missing: list[str] = []
    for row in CheckpointManager(original).history:
        if row.step in again:
            digests = _weights_digests(row), _weights_digests(again[row.step])
            if all(step == row.step for step, _ in finals):  # the same as `proa train` showed
                digests = finals[0][1], finals[1][1]
            compared.append(Comparison(row.step, row.name, *digests))
        elif row.step <= state.global_step:
            missing.append(row.name)
    return compared, missing


def _changed_inputs(original: Path, replayed: Path) -> list[str]:
    """How the replay's inputs differ from the original's, as far as checkpoints have them."""
    bound = []
    for folder in (original, replayed):
        row = CheckpointManager(folder).latest()
        try:
            found = Resumption(folder, row).bound_to if row is not None and row.state_path is not None else None
        except (CheckpointError, OSError):
            found = None
        if found is not None:
            bound.append(found[1])
    return bound[0].differences(bound[1]) if len(bound) == 2 else []


def _changed_libraries(original: Path) -> list[str]:
    before = read_json(original / "run.json").get("libraries", {})
    now = libraries()
    return [f"{name} was {before[name]} and is {now[name]}" for name in now if before.get(name, now[name]) != now[name]]


def _final_digest(folder: Path) -> tuple[int, str]:
    """The steps and the digest of the final weights of a complete run; (-1, "") of any other."""
    header = read_json(folder / "run.json")
    is_complete = header.get("status") == "completed" and "weights_digest" in header
    return (int(header["steps_run"]), str(header["weights_digest"])) if is_complete else (-1, "")


def _weights_digests(row: ManifestRow) -> str:
    """The digests of a checkpoint's weights, as one text."""
    names = sorted(name for name in row.digests if name.startswith("model/") and name.endswith(".safetensors"))
    return " ".join(row.digests[name] for name in names)


class _StopAfter(Callback):
    """Ends the replay where the original ended, or at the requested step."""

    priority = Priority.CONTROL
    uses_asyncio = False

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_step_end(self, state: LoopState, step_idx: int, batch: Any, metrics: dict[str, float]) -> None:
        if state.global_step == self._steps and state.global_step < state.max_steps:
            state.stop_training(f"replayed {self._steps} steps")
