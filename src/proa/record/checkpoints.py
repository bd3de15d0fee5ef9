"""Checkpoints that are complete or do not exist: written, synced, renamed, read back, listed in the manifest; then old
ones are pruned.

```
.new-step_4/          written by the caller, then every file and folder synced
step_4/               renamed, read back from the disk and hashed
checkpoints.jsonl     one more line: from here on it exists
step_2/               pruned: first its line, then its files
```
A crash between any two of these leaves a folder that the manifest does not name. The next writer removes it; readers
ignore it.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..data.loop import ManifestRow
from ..errors import SettingError
from ..spelling import did_you_mean
from .background import BackgroundSaver
from .checkpoint_files import (
    FOLDER_NAME,
    absolute_row,
    check_name,
    complete_row,
    folder_name,
    is_checkpoint_folder,
    read_back,
    relative_row,
    seal,
    temporary_name,
)
from .checkpoint_files import verify as verify_files
from .durable import CheckpointError, Disk, DiskFullError, explain, folder_size, format_bytes
from .manifest import Manifest, Removal
from .run_folder import json_line
from .run_lock import RunLockedError, lock

__all__ = [
    "BackgroundSaver",
    "CheckpointError",
    "CheckpointManager",
    "DiskFullError",
    "RunLockedError",
    "UnknownCheckpointError",
    "lock",
]

log = logging.getLogger("proa.record")

Mode = Literal["max", "min"]
FINAL_NAME = "final"


class UnknownCheckpointError(CheckpointError):
    """The run has no checkpoint of that name; the message lists the known ones."""


class CheckpointManager:
    """The checkpoints of one run. Reading changes nothing; saving is for the one process that writes the run's
    checkpoints; `remove` may be called anywhere, also while the run is active.

    Rows have absolute paths; those in the manifest are relative, so that a run's folder can be moved.

    `keep_last` is how many of the newest are kept (None keeps all), `keep_best` a metric whose best checkpoint is kept
    as well. Pruning happens only after a save, so a final checkpoint stays until the run continues.
    """

    def __init__(
        self,
        run_folder: Path,
        *,
        keep_last: int | None = None,
        keep_best: tuple[str, Mode] | None = None,
        disk: Disk | None = None,
    ) -> None:
        if keep_last is not None and keep_last < 1:
            raise SettingError(f"keep_last must be at least 1, not {keep_last}: a run always has its newest checkpoint")
        if keep_best is not None:
            _check_mode(keep_best[1])
        self.run_folder = Path(run_folder)
        self.folder = self.run_folder / FOLDER_NAME
        self._absolute_folder = self.run_folder.absolute()
        self._keep_last = keep_last
        self._keep_best = keep_best
        self._disk = disk or Disk()
        self._manifest = Manifest(self.run_folder, self._disk)
        self._writing = threading.RLock()
        self._saved_here: set[str] = set()

    @property
    def manifest_path(self) -> Path:
        return self._manifest.path

    @property
    def rows(self) -> list[ManifestRow]:
        """The existing checkpoints, oldest first."""
        return [absolute_row(row, self._absolute_folder) for row in self._manifest.rows()]

    @property
    def history(self) -> list[ManifestRow]:
        """The rows of all checkpoints ever written, including removed ones."""
        return [absolute_row(row, self._absolute_folder) for row in self._manifest.history()]

    @property
    def has_unreadable_lines(self) -> bool:
        """Whether the manifest has unreadable lines, which may have named checkpoints."""
        return self._manifest.has_unreadable_lines

    def row(self, name: str) -> ManifestRow:
        row = next((row for row in self.rows if row.name == name), None)
        if row is None:
            raise self._unknown(name)
        return row

    def _unknown(self, name: str) -> UnknownCheckpointError:
        names = [row.name for row in self.rows]
        known = f" (known: {', '.join(names)})" if names else "; it has none"
        return UnknownCheckpointError(f"{self.run_folder} has no checkpoint {name}{did_you_mean(name, names)}{known}")

    def latest(self) -> ManifestRow | None:
        return next(reversed(self.rows), None)

    def final(self) -> ManifestRow | None:
        """The final checkpoint, if the run has ended and was not continued."""
        return next((row for row in self.rows if row.final), None)

    def best(self, metric: str, mode: Mode = "max") -> ManifestRow | None:
        """The first checkpoint with the best value of a metric; rows without it, or with NaN, are ignored."""
        _check_mode(mode)
        scored = [
            row
            for row in self.rows
            if isinstance(value := row.metrics.get(metric), int | float) and not math.isnan(value)
        ]
        return (max if mode == "max" else min)(scored, key=lambda row: row.metrics[metric], default=None)

    def path(self, row: ManifestRow) -> Path:
        """The folder of a checkpoint, with `model/` and `state/` in it."""
        return self.folder / folder_name(relative_row(row, self.run_folder))

    def verify(self, row: ManifestRow) -> None:
        """Raise `CheckpointError` with the differences unless a checkpoint's files are exactly those of its row."""
        verify_files(self._disk, self.run_folder, relative_row(row, self.run_folder))

    def newest_good(self) -> tuple[ManifestRow, list[str]]:
        """The newest checkpoint that verifies, and why newer ones were skipped."""
        reasons: list[str] = []
        for row in reversed(self.rows):
            try:
                self.verify(row)
            except CheckpointError as error:
                reasons.append(str(error))
            else:
                return row, reasons
        why = "; ".join(reasons) or f"{self.manifest_path} names none"
        raise CheckpointError(f"there is no checkpoint to resume from in {self.run_folder}: {why}")

    def save(self, row: ManifestRow, write: Callable[[Path], None]) -> ManifestRow:
        """Let `write` fill a folder with `model/`, `state/` or both, and make it a checkpoint.

        The returned row has the paths, sizes and digests. If this raises, the checkpoint does not exist and earlier
        ones are untouched.
        """
        with self._writing:
            self._check_row(row)
            self._clean()
            with self._rollback(f"checkpoint {row.name} in {self.folder}", temporary_name(row.name)):
                row = self._write(row, write)
                self._manifest.append([row])
            self._saved_here.add(row.name)
            self._prune()
            return absolute_row(row, self._absolute_folder)

    def remove(self, row: ManifestRow, *, even_newest: bool = False) -> None:
        """Remove a checkpoint: its line in the manifest first, then its files.

        The newest one is refused, because a run that is interrupted resumes from it, unless `even_newest`. Any hook may
        call this, also while a checkpoint is being written in the background. A checkpoint that was removed does not
        count for `keep_last`.
        """
        with self._manifest.changing():
            existing = self._existing(row)
            resumable = [one.name for one in self._manifest.rows() if one.state_path is not None]
            if not even_newest and resumable[-1:] == [existing.name]:
                raise CheckpointError(
                    f"checkpoint {row.name} is the newest one, which {self.run_folder} would resume from: it is kept. "
                    f"To remove it all the same, call remove(row, even_newest=True)"
                )
            try:
                self._manifest.append([Removal(existing.name)])
            except OSError as error:
                raise explain(error, str(self.manifest_path), "a little", self.run_folder) from error
        folder = self.folder / folder_name(existing)
        try:
            self._disk.remove_tree(folder)
        except OSError as error:
            log.warning("%s is not a checkpoint any more and cannot be removed: %s", folder, error)

    def _existing(self, row: ManifestRow) -> ManifestRow:
        """The manifest's row of a checkpoint that is to be removed."""
        given = relative_row(row, self.run_folder)
        try:
            folder = folder_name(given)
        except CheckpointError as error:
            raise UnknownCheckpointError(f"{error}: is it a row of another run than {self.run_folder}?") from error
        if row.name not in (one.name for one in self._manifest.history()):
            raise self._unknown(row.name)
        existing = next((one for one in self._manifest.rows() if one.name == row.name), None)
        if existing is not None and folder_name(existing) == folder:
            return existing
        happened = "was removed already" if existing is None else "was replaced by a newer one of the same name"
        raise UnknownCheckpointError(f"checkpoint {row.name} of {self.run_folder} {happened}")

    def mark_final(self, name: str, metrics: Mapping[str, Any] | None = None) -> ManifestRow:
        """Mark a checkpoint as final, and add metrics measured after it was written."""
        with self._writing:
            self._clean()
            row = relative_row(self.row(name), self.run_folder)
            row = replace(row, final=True, metrics={**row.metrics, **(metrics or {})})
            _check_json(row)
            with self._rollback(str(self.manifest_path)):
                self._manifest.append([row])
            return absolute_row(row, self._absolute_folder)

    def forget_after(self, step: int) -> list[ManifestRow]:
        """Drop the checkpoints of later steps, which a run that resumes from this step will write again."""
        with self._writing:
            with self._manifest.changing():
                rows = self._manifest.rows()
                later = [row for row in rows if row.step > step]
                # Newest first: a crash between these lines leaves no gap.
                lines: list[ManifestRow | Removal] = [Removal(row.name) for row in reversed(later)]
                lines += [replace(row, final=False) for row in rows if row.final and row.step <= step]
                if lines:
                    with self._rollback(str(self.manifest_path)):
                        self._manifest.append(lines)
            self._clean()
            return [absolute_row(row, self._absolute_folder) for row in later]

    def _check_row(self, row: ManifestRow) -> None:
        """Raise before anything is written if a row cannot be saved."""
        check_name(row.name)
        _check_json(row)
        if not self.run_folder.is_dir():
            raise CheckpointError(
                f"checkpoint {row.name} cannot be written: the run's folder {self.run_folder} is gone"
            )
        if self.folder.is_symlink():
            raise CheckpointError(f"{self.folder} is a link, and links are not followed in a run's folder")
        existing = next((other for other in self.rows if other.name == row.name), None)
        if existing is None:
            return
        repeated = row.step == existing.step or (row.name == FINAL_NAME and row.step > existing.step)
        if row.name in self._saved_here or not repeated:
            raise CheckpointError(f"checkpoint {row.name} already exists, of step {existing.step}: use another name")

    def _write(self, row: ManifestRow, write: Callable[[Path], None]) -> ManifestRow:
        """Write and verify the files; the manifest comes later."""
        if not self.folder.exists():
            self._disk.make_folder(self.folder)
            self._disk.sync_folder(self.run_folder)
        folder = self._free_folder(row.name)
        temporary = self.folder / temporary_name(row.name)
        self._disk.make_folder(temporary)
        self._disk.call(write, temporary)
        fingerprints = seal(self._disk, temporary)
        self._disk.rename(temporary, self.folder / folder)
        self._disk.sync_folder(self.folder)
        return complete_row(row, folder, *read_back(self._disk, self.folder / folder, fingerprints))

    def _free_folder(self, name: str) -> str:
        """The checkpoint's name, or `name~2` and so on while another of this name exists."""
        number, folder = 1, name
        while os.path.lexists(self.folder / folder):
            if (self.folder / folder).is_symlink():
                raise CheckpointError(f"{self.folder / folder} is a link, and links are not followed in a run's folder")
            number += 1
            folder = f"{name}~{number}"
        return folder

    def _prune(self) -> None:
        """Drop all but the last and the best. The new checkpoint is safe by now: a failure here only costs space."""
        try:
            with self._manifest.changing():  # a hook may remove others at this moment
                best = self.best(*self._keep_best) if self._keep_best else None
                old = self.rows[: -self._keep_last] if self._keep_last is not None else []
                dropped = [Removal(row.name) for row in old if row != best]
                if dropped:
                    self._manifest.append(dropped)
            self._clean()
        except (OSError, CheckpointError) as error:
            log.warning("old checkpoints in %s were not removed; the run continues: %s", self.folder, error)

    def _clean(self) -> None:
        """Remove folders that the manifest does not name: left by a crash, pruned or replaced."""
        if self.folder.is_symlink() or not self.folder.is_dir():
            return
        named = _folder_names(self._manifest.rows())
        # An unreadable line may name any folder: then only folders that were certainly dropped are removed.
        cautious = self.has_unreadable_lines
        dropped = _folder_names(self._manifest.history()) - named if cautious else set()
        with os.scandir(self.folder) as entries:
            unnamed = [
                Path(entry.path)
                for entry in entries
                if entry.name not in named and is_checkpoint_folder(entry.name) and entry.is_dir(follow_symlinks=False)
                if not cautious or entry.name in dropped or entry.name.startswith(temporary_name(""))
            ]
        for path in unnamed:
            try:
                self._disk.remove_tree(path)
            except OSError as error:
                log.warning("%s is not a checkpoint any more and cannot be removed: %s", path, error)

    @contextmanager
    def _rollback(self, what: str, folder: str | None = None) -> Iterator[None]:
        """Leave nothing behind when writing fails, and explain why it did."""
        try:
            yield
        except Exception as error:
            needs = "a little" if folder is None else self._space_needed(folder_size(self.folder / folder))
            try:
                self._clean()
            except (OSError, CheckpointError) as second:
                log.warning("leftovers in %s were not removed: %s", self.folder, second)
            failure = explain(error, what, needs, self.run_folder)
            if failure is error:
                raise
            raise failure from error

    def _space_needed(self, written: int) -> str:
        """An estimate of a checkpoint's size from this one and the one before."""
        try:
            last = self.latest()
        except (OSError, CheckpointError):
            last = None
        before = sum(last.sizes.values()) if last else 0
        if last is None or before <= written:
            return f"more than the {format_bytes(written)} that were written"
        return f"about {format_bytes(before)}, as {last.name} did, and {format_bytes(written)} were written"


def _check_mode(mode: str) -> None:
    if mode not in ("max", "min"):
        raise SettingError(f"mode must be max or min, not {mode!r}")


def _check_json(row: ManifestRow) -> None:
    if "removed" in row.extra:
        raise CheckpointError(f"checkpoint {row.name}: the key removed is reserved")
    try:
        json_line(row.as_dict())
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {row.name}: its row must hold plain JSON values: {error}") from error


def _folder_names(rows: Iterable[ManifestRow]) -> set[str]:
    names = set()
    for row in rows:
        with suppress(CheckpointError):  # a row of an older version or another library: its folder is not here
            names.add(folder_name(row))
    return names
