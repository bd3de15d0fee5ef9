"""Resuming a run: choosing its checkpoint, cutting its record back, and restoring the process."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
"""Files of a run beside its header, removed if it begins again because it had no checkpoint."""
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
        """The run's configuration and inputs when it was written; None if an older version wrote it."""
        run = self.part("run")
        return (run["config"], Inputs.from_dict(run["inputs"])) if "inputs" in run else None

    def loop(self) -> Resumed:
        return Resumed(self.part("trainer"), self.row)

    def final_state(self, output_dir: Path) -> LoopState:
        """The state of a complete run: that of its last checkpoint, with later entries of its header."""
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
    """The checkpoint to resume from: the named one, or the newest complete one. None if the run has none at all."""
    manager = CheckpointManager(folder)
    rows = manager.rows
    if name != AUTO:
        row = manager.row(name)
        try:
            manager.verify(row)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{_suggest_other(manager)}") from error
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
    """Raise if checkpoints exist and only their list is lost, as the run would begin again and remove them. A single
    unlisted folder is allowed: a crash during the first save leaves one."""
    folder = manager.run_folder
    saved = [path for path in manager.folder.glob("*") if not path.name.startswith(".")]
    if len(saved) > 1 or (folder / "model").exists():
        raise CheckpointError(
            f"{manager.manifest_path}, which names the checkpoints of this run, is gone or empty, and the run had "
            f"some: put it back from a copy. To start over, remove {folder}"
        )


def _suggest_other(manager: CheckpointManager) -> str:
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
    """Remove everything after the checkpoint from the record; files are cut to their length at the checkpoint.

    Missing parts of the record before it are reported; the run does not need them.
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
    """Raise if the run's folder contains links, whose targets must not be cut or removed, or special files."""
    names = (*RECORD_FILES, "checkpoints.jsonl", "checkpoints", "evals", "rollouts")
    for path in (*(folder / name for name in names), *folder.glob("evals/*"), *folder.glob("checkpoints/*")):
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link, and links are not followed in a run's folder")
        if path.exists() and not path.is_file() and not path.is_dir():  # opening a pipe may block forever
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
        length = path.read_bytes().rfind(b"\n") + 1  # cut to whole lines
    Disk().cut_file(path, length)


def _remove_later_predictions(folder: Path, step: int) -> None:
    """Remove the predictions of later evals, which run again. If the record is damaged, all are kept."""
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
    """Remove all files of a run that ended before its first checkpoint."""
    _clear(folder, (*RUN_FILES, *LOGGER_FOLDERS))


def clear_record(folder: Path) -> None:
    """The same while the run continues: its loggers are open, and can repeat steps."""
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
    """The digest of a run's initial weights, which may be its reference."""
    return transport_digest({name: tensor.cpu().contiguous() for name, tensor in published.items()})


def changed_start_error() -> CheckpointError:
    return CheckpointError(
        "the model is not the one that this run began with, which it still needs (as its reference, or under its "
        "adapter): is model.path what it was?"
    )


def restore_process(
    resumption: Resumption, manager: CallbackManager, *, partly: bool = False, random: str = "random"
) -> None:
    """Restore the callbacks of this process, which may be only a part of all, and its random streams."""
    run = resumption.part("run")
    states = {**run["callbacks"], **run.get("trainer_callbacks", {})}
    if partly:
        here = stateful(manager.callbacks)
        states = {key: state for key, state in states.items() if key in here or key == FIRINGS}
    manager.load_state_dict(states)
    set_random_state(run.get(random, run["random"]))


def warn_changed_libraries(resumption: Resumption) -> None:
    """Warn of libraries whose version differs from the checkpoint's."""
    before = resumption.part("run").get("libraries", {})
    for name, now in libraries().items():
        if before.get(name, now) != now:
            log.warning(
                "%s was %s and is %s; results may differ in their last bits from here on", name, before[name], now
            )
