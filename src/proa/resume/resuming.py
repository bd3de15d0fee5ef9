"""Resuming a run: from which checkpoint, with which configuration, and what of the record is kept."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ConfigError, RunConfig, restore_run_config
from ..config.sections import GIVEN
from ..data.loop import ManifestRow
from ..data.state import LoopState
from ..lifecycle.manager import CallbackManager
from ..lifecycle.saved_state import FIRINGS, stateful
from ..loop import Resumed
from ..record.checkpoints import CheckpointError, CheckpointManager
from ..record.durable import Disk
from ..record.evals import EvalRecord, predictions_path
from ..record.run_folder import BrokenRecordError, RunFolderError, decode_numbers, libraries, read_json
from ..record.run_record import RECORD_FILES
from ..record.secrets import redact, redacted_keys
from ..record.state_files import read_state
from ..roles.weights import transport_digest
from .inputs import Inputs
from .random_state import set_random_state

if TYPE_CHECKING:
    import torch

log = logging.getLogger("proa.resume")

AUTO = "auto"
FROM_THE_BEGINNING = "the beginning"
RUN_FILES = (
    "metrics.jsonl", "metrics.csv", "journal.jsonl", "live.json", "evals", "evals.jsonl", "checkpoints",
    "checkpoints.jsonl", "base", "model", ".model.new", "spans.jsonl", "rollouts", ".uploads",
)  # fmt: skip
"""What a run writes beside its header; a run that begins again, because it had no checkpoint, begins without."""
LOGGER_FOLDERS = ("tensorboard", "wandb", "trackio")


@dataclass(frozen=True)
class Resumption:
    """A checkpoint to resume from."""

    folder: Path
    row: ManifestRow

    @property
    def model(self) -> Path:
        return self._path / "model"

    def part(self, name: str) -> dict[str, Any]:
        """One part of what was saved."""
        return read_state(self._path / "state" / name)

    @cached_property
    def bound_to(self) -> tuple[dict[str, Any], Inputs] | None:
        """The configuration and what the run worked on when it was written; None if it is of a version without."""
        run = self.part("run")
        return (run["config"], Inputs.from_dict(run["inputs"])) if "inputs" in run else None

    def loop(self) -> Resumed:
        return Resumed(self.part("trainer"), self.row)

    def final_state(self, output_dir: Path) -> LoopState:
        """The state of a run that is complete: as in its last checkpoint, with what came after that."""
        state = LoopState(output_dir=output_dir)
        self.loop().restore(state)
        header = read_json(self.folder / "run.json")
        state.policy_version = header.get("policy_version", state.policy_version)
        state.metrics |= decode_numbers(self.row.metrics)
        if header.get("stopped_by") is not None:
            state.stop_training(header.get("stop_reason"), by=header["stopped_by"])
        return state

    @property
    def _path(self) -> Path:
        return CheckpointManager(self.folder).path(self.row)


def find_checkpoint(folder: Path, name: str = AUTO) -> Resumption | None:
    """The checkpoint to resume from: that of a name, or the newest that is whole. None if the run has none at all."""
    manager = CheckpointManager(folder)
    rows = manager.rows
    if name != AUTO:
        row = manager.row(name)
        try:
            manager.verify(row)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{_offer(manager)}") from error
        return _usable(Resumption(folder, row))
    if not rows:
        if manager.has_unreadable_lines:
            raise CheckpointError(
                f"no line of {manager.manifest_path} can be read, so there is no checkpoint to resume from; what is in "
                f"{manager.folder} is left alone. Put the file back from a copy, or remove it to start over"
            )
        _refuse_lost_manifest(manager)
        return None
    row, passed_over = manager.newest_good()
    for reason in passed_over:
        log.warning("passed over: %s", reason)
    return _usable(Resumption(folder, row))


def _refuse_lost_manifest(manager: CheckpointManager) -> None:
    """A run without a checkpoint begins again, and what is there of it is removed: not where its checkpoints are there
    and only their list is gone. One folder that no list names is what a crash in the first save leaves."""
    folder = manager.run_folder
    saved = [path for path in manager.folder.glob("*") if not path.name.startswith(".")]
    if len(saved) > 1 or (folder / "model").exists():
        raise CheckpointError(
            f"{manager.manifest_path}, which names the checkpoints of this run, is gone or empty, and the run had "
            f"some: put it back from a copy. To start over, remove {folder}"
        )


def _offer(manager: CheckpointManager) -> str:
    try:
        row, _ = manager.newest_good()
    except CheckpointError:
        return "; there is no other that is whole"
    return f"; the newest that is whole is {row.name}"


def _usable(resumption: Resumption) -> Resumption:
    if resumption.row.state_path is None:
        raise CheckpointError(
            f"checkpoint {resumption.row.name} holds a model and no state: a run cannot resume from it"
        )
    return resumption


def truncate_record(resumption: Resumption) -> None:
    """Take out of the record what came after the checkpoint. Files that are appended to were that long.

    What is missing of the record before it is reported, and nothing that the run needs.
    """
    folder, step = resumption.folder, resumption.row.step
    _refuse_links(folder)  # before the first file is cut
    lengths: dict[str, int] = resumption.part("run")["record"]
    for name in RECORD_FILES:
        _cut_file(folder / name, lengths.get(name, 0), resumption.row.name)
    _remove_later_predictions(folder, step)
    for rollouts in folder.glob("rollouts/step_*.jsonl"):
        after = rollouts.stem.removeprefix("step_")
        if after.isdecimal() and int(after) > step:  # else it is not the run's
            rollouts.unlink()
    CheckpointManager(folder).forget_after(step)


def _refuse_links(folder: Path) -> None:
    """What a link in a run's folder leads to is not the run's to cut or to remove."""
    names = (*RECORD_FILES, "checkpoints.jsonl", "checkpoints", "evals", "rollouts")
    for path in (*(folder / name for name in names), *folder.glob("evals/*"), *folder.glob("checkpoints/*")):
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link, and links are not followed in a run's folder")
        if path.exists() and not path.is_file() and not path.is_dir():  # opening a pipe may wait for ever
            raise CheckpointError(f"{path} is not a plain file, as those of a run's folder are")


def _cut_file(path: Path, length: int, checkpoint: str) -> None:
    if not path.exists():
        if length:
            log.warning(
                "%s is missing, and had %d bytes at checkpoint %s: the run continues without it",
                path,
                length,
                checkpoint,
            )
        return
    size = path.stat().st_size
    if size < length:
        log.warning(
            "%s is shorter than it was when checkpoint %s was written, %d bytes and %d then: the run continues with "
            "what is left of it", path, checkpoint, size, length,
        )  # fmt: skip
        length = path.read_bytes().rfind(b"\n") + 1  # so that the next line begins a line
    Disk().cut_file(path, length)


def _remove_later_predictions(folder: Path, step: int) -> None:
    """Those of later evals, which come again. What the record has lost stays."""
    try:
        known = {predictions_path(result.name, result.step) for result in EvalRecord(folder).read()}
    except BrokenRecordError as error:
        log.warning("%s: the run continues, and no predictions are removed", error)
        return
    for predictions in folder.glob("evals/*/*.jsonl"):
        done = predictions.stem.removeprefix("step_")
        is_earlier = done.isdecimal() and int(done) <= step
        if predictions.relative_to(folder) not in known and not is_earlier:
            predictions.unlink()


def clear_run(folder: Path) -> None:
    """Clear a run's folder of a run that ended before its first checkpoint."""
    _clear(folder, (*RUN_FILES, *LOGGER_FOLDERS))


def clear_record(folder: Path) -> None:
    """The same while the run goes on: its loggers are open, and know how to repeat steps."""
    _clear(folder, RUN_FILES)


def _clear(folder: Path, names: Sequence[str]) -> None:
    if not (folder / "run.json").is_file():
        raise RunFolderError(f"{folder} is not a run's folder: there is no run.json in it")
    for name in names:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def start_digest(published: Mapping[str, torch.Tensor]) -> str:
    """Of the weights that a run begins with: its reference, where it has one."""
    return transport_digest({name: tensor.cpu().contiguous() for name, tensor in published.items()})


def changed_start_error() -> CheckpointError:
    return CheckpointError(
        "the model is not the one that this run began with, which it still needs (as its reference, or under its "
        "adapter): is model.path what it was?"
    )


def restore_process(
    resumption: Resumption, manager: CallbackManager, *, partly: bool = False, random: str = "random"
) -> None:
    """The callbacks that live in this process, which may be a part of them, and its random streams, as they were."""
    run = resumption.part("run")
    states = {**run["callbacks"], **run.get("trainer_callbacks", {})}
    if partly:
        here = stateful(manager.callbacks)
        states = {key: state for key, state in states.items() if key in here or key == FIRINGS}
    manager.load_state_dict(states)
    set_random_state(run.get(random, run["random"]))


# -- the configuration ---------------------------------------------------------------------------------

_FREE = (
    "name", "output_dir", "runtime", "makers", "ray", "wait_timeout", "lease_timeout", "buffer_limit", "checkpoint",
    "record", "eval", "callbacks", "reward.timeout", "reward.workers", "model.trust_remote_code",
)  # fmt: skip
"""What may change without changing what is learned."""
_REORDERING_KEYS = (
    "threads", "trainers", "model.device", "model.attention", "model.gradient_checkpointing", "model.compile", "engine",
    "optimizer.token_budget", "optimizer.share_prompts",
)  # fmt: skip
"""What computes the same in another order: allowed, but sums may differ in their last bits."""


def saved_config(folder: Path) -> dict[str, Any]:
    """The configuration of the run in a folder."""
    try:
        return read_json(folder / "config.json")
    except FileNotFoundError:
        raise RunFolderError(f"{folder} is not a run's folder: there is no config.json in it") from None


def load_complete_config(folder: Path, flags: Sequence[str] = ()) -> RunConfig:
    """The configuration of the run in a folder, wherever that lies now, with what flags change. One that does not say
    all that the run needs is refused."""
    config = load_saved_config(folder, flags)
    left = config.model_dump(mode="json")
    if unsaid := redacted_keys(left):
        raise ConfigError(f"{unsaid[0]} was a secret and was not written down: give it again, as --{unsaid[0]} VALUE")
    if GIVEN in str(left):
        raise ConfigError(
            f"parts of this run were given in Python (see {folder / 'config.json'}): resume it there, "
            f'by the same call with resume="auto"'
        )
    return config


def load_saved_config(folder: Path, flags: Sequence[str] = ()) -> RunConfig:
    """The same, as far as it was written down: without secrets, and without what was given in Python."""
    parent = folder.parent if folder.name not in ("", "..") else folder.resolve().parent
    saved = saved_config(folder)
    where = {"name": folder.resolve().name, "output_dir": str(parent)}
    return restore_run_config(_find_moved_paths(saved, str(saved.get("output_dir")), str(parent)) | where, flags)


def config_changes(
    saved: dict[str, Any], config: RunConfig, bound: dict[str, Any] | None = None
) -> dict[str, tuple[Any, Any]]:
    """What a configuration changes in a resumed run, as {key: (before, now)}. What would change what is
    learned is refused. The folder that the run lies in may have been moved.

    `saved` is what the run's folder says, which anybody may have edited, and `bound` what the checkpoint says: that
    counts for all that decides what is learned.
    """
    now = config.model_dump(mode="json")
    changes = _changes(saved, now)
    if bound is not None:
        free = {key: pair for key, pair in changes.items() if _is_in(key, _FREE)}
        redacted = redact(now)  # as it stands in the checkpoint
        changes = free | {key: pair for key, pair in _changes(bound, redacted).items() if not _is_in(key, _FREE)}
    refused = {key: pair for key, pair in changes.items() if not _is_in(key, (*_FREE, *_REORDERING_KEYS))}
    if refused:
        described = "; ".join(_describe_change(key, before, now) for key, (before, now) in refused.items())
        raise ConfigError(
            f"this run cannot continue with another configuration: {described}. Give it as it was. "
            f"To train further with other settings, start a new run whose model.path is one of its checkpoints"
        )
    return changes


def _changes(saved: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """All that differs. Keys that a newer version added were at their defaults."""
    with suppress(ConfigError):
        saved = restore_run_config(saved).model_dump(mode="json")
    found = _differences(_follow_moved_paths(saved, now, str(saved.get("output_dir")), now["output_dir"]), now)
    given_again = {key for key, (before, now_) in found.items() if redact({key: now_}) == {key: before}}  # secrets
    return {key: pair for key, pair in found.items() if key not in given_again}


def warn_changed_libraries(resumption: Resumption) -> None:
    """Say which libraries are others than those that the checkpoint was made with."""
    before = resumption.part("run").get("libraries", {})
    for name, now in libraries().items():
        if before.get(name, now) != now:
            log.warning(
                "%s was %s and is %s; results may differ in their last bits from here on", name, before[name], now
            )


def log_changes(changes: dict[str, tuple[Any, Any]]) -> None:
    for key, (before, now) in changes.items():
        if _is_in(key, ("name", "output_dir")) or redact({key: before}) == redact({key: now}):  # a secret, given again
            continue
        bits = "; results may differ in their last bits from here on" if _is_in(key, _REORDERING_KEYS) else ""
        log.warning("%s%s", _describe_change(key, before, now), bits)


def _follow_moved_paths(saved: Any, given: Any, before: str, now: str) -> Any:
    """What was saved, with paths as they are since the folder that the run lies in was moved: a stage of an experiment
    names the weights of the one before. A path that is given as it was saved was not moved."""
    if isinstance(saved, dict) and isinstance(given, dict):
        return {key: _follow_moved_paths(value, given.get(key), before, now) for key, value in saved.items()}
    if isinstance(saved, list) and isinstance(given, list) and len(saved) == len(given):
        return [_follow_moved_paths(*pair, before, now) for pair in zip(saved, given, strict=True)]
    inside = isinstance(saved, str) and saved.startswith(before + os.sep)
    return given if inside and given == now + saved.removeprefix(before) else saved


def _find_moved_paths(saved: Any, before: str, now: str) -> Any:
    """What was saved, with paths of what is not where it was, but is in the folder that the run lies in now."""
    if isinstance(saved, dict):
        return {key: _find_moved_paths(value, before, now) for key, value in saved.items()}
    if isinstance(saved, list):
        return [_find_moved_paths(value, before, now) for value in saved]
    if not isinstance(saved, str) or not saved.startswith(before + os.sep) or Path(saved).exists():
        return saved
    moved = now + saved.removeprefix(before)
    return moved if Path(moved).exists() else saved


def _describe_change(key: str, before: Any, now: Any) -> str:
    return f"{key} was {redact({key: before})[key]!r} and is {redact({key: now})[key]!r}"


def _differences(before: Any, now: Any, key: str = "") -> dict[str, tuple[Any, Any]]:
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return {} if before == now else {key: (before, now)}
    found: dict[str, tuple[Any, Any]] = {}
    for name in [*before, *(name for name in now if name not in before)]:
        found |= _differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    return found


def _is_in(key: str, keys: tuple[str, ...]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in keys)
