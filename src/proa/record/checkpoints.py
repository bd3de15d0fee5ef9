"""Checkpoints that are whole or do not exist: written, synced, renamed, read back, named in the manifest, then pruned.

```
.new-step_4/          written by the caller, then every file and folder synced
step_4/               renamed, read back from the disk and hashed
checkpoints.jsonl     one line more: from here on it exists
step_2/               pruned: first its line, then its files
```
A crash between any two of these leaves something that the manifest does not name. Whoever writes next removes it;
whoever only reads does not touch it.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..data.loop import ManifestRow
from ..errors import SettingError
from ..spelling import did_you_mean
from .background import BackgroundSaver
from .checkpoint_files import FOLDER_NAME, check_name, described, fresh_place, is_ours, place_of, read_back, seal
from .checkpoint_files import verify as verify_files
from .durable import CheckpointError, Disk, DiskFullError, bytes_below, explained, in_words
from .manifest import Manifest, Removal
from .run_folder import as_json_line
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
    """The checkpoints of one run. Reading changes nothing; writing is for the one process that holds the run's lock.

    `keep_last` is how many of the newest are kept (None keeps all), `keep_best` a metric of the rows whose best
    checkpoint is kept besides. Pruning comes after a save alone, so a final one stays until the run goes on.
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
        """The checkpoints that there are, in the order in which they were written."""
        return self._manifest.rows()

    @property
    def history(self) -> list[ManifestRow]:
        """The rows of all that there ever were, whose files may be gone."""
        return self._manifest.history()

    @property
    def has_unreadable_lines(self) -> bool:
        """Whether the manifest has lines that cannot be read, each of which may have named a checkpoint."""
        return self._manifest.has_unreadable_lines

    def row(self, name: str) -> ManifestRow:
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            known = f" (known: {', '.join(rows)})" if rows else "; it has none"
            raise UnknownCheckpointError(f"{self.run_folder} has no checkpoint {name}{did_you_mean(name, rows)}{known}")
        return rows[name]

    def latest(self) -> ManifestRow | None:
        return next(reversed(self.rows), None)

    def final(self) -> ManifestRow | None:
        """The final one, if the run has ended and has not gone on since."""
        return next((row for row in self.rows if row.final), None)

    def best(self, metric: str, mode: Mode = "max") -> ManifestRow | None:
        """The one whose metric is best, the first of several; rows without the metric, or with NaN, do not count."""
        _check_mode(mode)
        scored = [row for row in self.rows if _is_number(row.metrics.get(metric))]
        return (max if mode == "max" else min)(scored, key=lambda row: row.metrics[metric], default=None)

    def path(self, row: ManifestRow) -> Path:
        """The folder of a checkpoint, with `model/` and `state/` in it."""
        return self.folder / place_of(row)

    def verify(self, row: ManifestRow) -> None:
        """Raise `CheckpointError`, saying what is wrong, unless a checkpoint's files are exactly those of its row."""
        verify_files(self._disk, self.run_folder, row)

    def newest_good(self) -> tuple[ManifestRow, list[str]]:
        """The newest checkpoint that verifies, and why newer ones were passed over."""
        reasons: list[str] = []
        for row in reversed(self.rows):
            try:
                self.verify(row)
            except CheckpointError as error:
                reasons.append(str(error))
            else:
                return row, reasons
        why = "; ".join(reasons) or f"{self.manifest_path} names none"
        raise CheckpointError(f"there is no checkpoint to go on from in {self.run_folder}: {why}")

    def save(self, row: ManifestRow, write: Callable[[Path], None]) -> ManifestRow:
        """Have `write` fill a folder with `model/`, `state/` or both, and make that a checkpoint.

        The row that is returned has the paths, sizes and digests. If this raises, there is no such checkpoint, and
        those before it are untouched.
        """
        with self._writing:
            self._refuse(row)
            self._clean()
            with self._or_nothing(f"checkpoint {row.name} in {self.folder}", fresh_place(row.name)):
                row = self._written(row, write)
                self._manifest.append([row])
            self._saved_here.add(row.name)
            self._prune()
            return row

    def mark_final(self, name: str, metrics: Mapping[str, Any] | None = None) -> ManifestRow:
        """Say that a checkpoint is the final one, and what was measured after it was written."""
        with self._writing:
            self._clean()
            row = self.row(name)
            row = replace(row, final=True, metrics={**row.metrics, **(metrics or {})})
            _check_json(row)
            with self._or_nothing(str(self.manifest_path)):
                self._manifest.append([row])
            return row

    def forget_after(self, step: int) -> list[ManifestRow]:
        """Drop the checkpoints of later steps, which a run that goes on from this step will write anew."""
        with self._writing:
            rows = self.rows
            later = [row for row in rows if row.step > step]
            # Newest first: whatever a crash leaves of these lines, no gap is left.
            lines: list[ManifestRow | Removal] = [Removal(row.name) for row in reversed(later)]
            lines += [replace(row, final=False) for row in rows if row.final and row.step <= step]
            if lines:
                with self._or_nothing(str(self.manifest_path)):
                    self._manifest.append(lines)
            self._clean()
            return later

    def _refuse(self, row: ManifestRow) -> None:
        """Raise if a row cannot be saved, before anything is written."""
        check_name(row.name)
        _check_json(row)
        if not self.run_folder.is_dir():
            raise CheckpointError(
                f"checkpoint {row.name} cannot be written: the run's folder {self.run_folder} is gone"
            )
        if self.folder.is_symlink():
            raise CheckpointError(f"{self.folder} is a link, and links are not followed in a run's folder")
        there = next((other for other in self.rows if other.name == row.name), None)
        if there is None:
            return
        repeated = row.step == there.step or (row.name == FINAL_NAME and row.step > there.step)
        if row.name in self._saved_here or not repeated:
            raise CheckpointError(f"there is a checkpoint {row.name} already, of step {there.step}: use another name")

    def _written(self, row: ManifestRow, write: Callable[[Path], None]) -> ManifestRow:
        """Everything but the line in the manifest."""
        if not self.folder.exists():
            self._disk.make_folder(self.folder)
            self._disk.sync_folder(self.run_folder)
        place = self._free_place(row.name)
        fresh = self.folder / fresh_place(row.name)
        self._disk.make_folder(fresh)
        self._disk.call(write, fresh)
        prints = seal(self._disk, fresh)
        self._disk.rename(fresh, self.folder / place)
        self._disk.sync_folder(self.folder)
        return described(row, place, *read_back(self._disk, self.folder / place, prints))

    def _free_place(self, name: str) -> str:
        """The folder that the checkpoint gets. While another of its name exists, one beside it."""
        number, place = 1, name
        while os.path.lexists(self.folder / place):
            if (self.folder / place).is_symlink():
                raise CheckpointError(f"{self.folder / place} is a link, and links are not followed in a run's folder")
            number += 1
            place = f"{name}~{number}"
        return place

    def _prune(self) -> None:
        """Drop what need not be kept. The new checkpoint is safe already, so what fails here only costs room."""
        try:
            dropped = self._not_kept(self._keep_last) if self._keep_last is not None else []
            if dropped:
                self._manifest.append(dropped)
            self._clean()
        except (OSError, CheckpointError) as error:
            log.warning("old checkpoints in %s are not removed, and the run goes on: %s", self.folder, error)

    def _not_kept(self, last: int) -> list[Removal]:
        """All but the last and the best. One that was just written is the last, and only that can be final now."""
        rows = self.rows
        best = self.best(*self._keep_best) if self._keep_best else None
        return [Removal(row.name) for row in rows[:-last] if row != best]

    def _clean(self) -> None:
        """Remove the folders that the manifest does not name: what a crash left, what was pruned or replaced."""
        if self.folder.is_symlink() or not self.folder.is_dir():
            return
        named = {place for row in self.rows if (place := _place_or_none(row))}
        any_may_be_named = self.has_unreadable_lines
        dropped = {_place_or_none(row) for row in self.history} - named if any_may_be_named else set()
        with os.scandir(self.folder) as entries:
            unnamed = [
                Path(entry.path)
                for entry in entries
                if entry.name not in named and is_ours(entry.name) and entry.is_dir(follow_symlinks=False)
                if not any_may_be_named or entry.name in dropped or entry.name.startswith(fresh_place(""))
            ]
        for path in unnamed:
            try:
                self._disk.remove_tree(path)
            except OSError as error:
                log.warning("%s is no checkpoint any more and cannot be removed: %s", path, error)

    @contextmanager
    def _or_nothing(self, what: str, place: str | None = None) -> Iterator[None]:
        """Leave nothing behind when writing fails, and say in words why it did. (After a crash nobody is here.)"""
        try:
            yield
        except Exception as error:
            needs = "a little" if place is None else self._needs(bytes_below(self.folder / place))
            try:
                self._clean()
            except (OSError, CheckpointError) as another:
                log.warning("what is left in %s is not removed now: %s", self.folder, another)
            failure = explained(error, what, needs, self.run_folder)
            if failure is error:
                raise
            raise failure from error

    def _needs(self, written: int) -> str:
        """How much room a checkpoint needs, as far as can be told from this one and the one before."""
        try:
            last = self.latest()
        except (OSError, CheckpointError):
            last = None
        before = sum(last.sizes.values()) if last else 0
        if last is None or before <= written:
            return f"more than the {in_words(written)} that were written"
        return f"about {in_words(before)}, as {last.name} did, and {in_words(written)} were written"


def _check_mode(mode: str) -> None:
    if mode not in ("max", "min"):
        raise SettingError(f"the best is that with the max or the min of a metric, not {mode!r}")


def _check_json(row: ManifestRow) -> None:
    if "removed" in row.extra:
        raise CheckpointError(f"checkpoint {row.name}: a row cannot have a key removed; that is how one is dropped")
    try:
        as_json_line(row.as_dict())
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {row.name}: its row must be plain values for JSON: {error}") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)


def _place_or_none(row: ManifestRow) -> str | None:
    try:
        return place_of(row)
    except CheckpointError:  # of an older version or another library: nothing here is its
        return None
