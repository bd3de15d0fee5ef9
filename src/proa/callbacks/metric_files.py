"""Metrics on disk, step by step: JSON lines, which keep everything, and CSV, which opens anywhere."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

from ..data.loop import LoopArtifacts, TrainingBatch
from ..data.state import LoopState
from ..errors import CallbackConfigError
from ..lifecycle.hooks import Callback
from ..lifecycle.policy import ErrorPolicy, Priority
from ..private_files import make_private_folder, open_private, write_private
from ..record.durable import Disk
from ..record.patient_writes import LineFile, PatientWrites
from ..record.run_folder import encode_number
from ..record.secrets import redact_metrics
from .logged_values import eval_metrics

log = logging.getLogger("proa.callbacks")

Row: TypeAlias = dict[str, int | float | str | None]


class _MetricFile(Callback):
    """One row per step, one per eval with the eval's name, and one for metrics that hooks logged later, written at once
    to a private file.

    While the disk is full, rows are kept and written later, in order. If they cannot be written at all, that is a
    failure of a logger; with `required`, as for the run's own record, it ends the run.
    """

    priority = Priority.RECORD
    error_policy = ErrorPolicy.DISABLE
    default_name = ""
    disk = Disk()

    def __init__(self, path: str | Path | None = None, *, required: bool = False) -> None:
        self._given_path = None if path is None else Path(path)
        self._file: IO[str] | None = None
        self.required = required
        if required:
            self.error_policy = ErrorPolicy.RAISE

    def on_train_start(self, state: LoopState) -> None:
        self._close()
        self._writes, self._lines = PatientWrites(), LineFile(self.disk)
        if self._given_path is None and state.output_dir is None:
            raise CallbackConfigError(
                f"{type(self).__name__} has nowhere to write: give it a path, or the run an output_dir"
            )
        self.path = self._given_path or (state.output_dir or Path()) / self.default_name
        make_private_folder(self.path.parent)
        self._written_before: set[str] = set()
        if state.resumed_from and self.path.exists():
            self._truncate(state.global_step)
            if not self.required:  # the run's own record was truncated to the byte
                self._written_before = self._names_at(state.global_step - 1)
        self._resumed_step = state.global_step - 1
        self._file = open_private(self.path, "a" if state.resumed_from else "w")

    def on_step_end(self, state: LoopState, step_idx: int, batch: TrainingBatch, metrics: dict[str, float]) -> None:
        if state.exception is None:  # an interrupted step has no metrics
            self._write(_row(state, step_idx, metrics))

    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        if state.exception is None:
            self._write(_row(state, step_idx, eval_metrics(state, eval_name, metrics)))

    def on_metrics(self, state: LoopState, step_idx: int, metrics: dict[str, float]) -> None:
        if step_idx == self._resumed_step:  # what came after the checkpoint comes again
            metrics = {name: value for name, value in metrics.items() if name not in self._written_before}
        if not metrics:
            return
        is_late = self._file is None  # logged by a hook of `train_end`
        if is_late:
            self._reopen()
        try:
            self._write(_row(state, step_idx, metrics))
            if is_late:
                self.catch_up()
        finally:
            if is_late:
                self._close()

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        try:
            self.catch_up()
        finally:
            self._close()

    def catch_up(self) -> None:
        """Write all rows that wait for the disk; raise if that fails."""
        if self._file is not None:
            self._writes.finish()

    def _write(self, row: Row) -> None:
        assert self._file is not None, "no row comes before train_start"
        self._writes.write(self.path, lambda: self._append_safely(row))

    def _append_safely(self, row: Row) -> None:
        """Append a row to the file at this path, which may not be the one that was opened."""
        assert self._file is not None, "it is closed when nothing waits any more"
        if not self.path.exists() or not os.path.samestat(self.path.stat(), os.fstat(self._file.fileno())):
            log.warning("%s was removed or replaced during the run: its rows so far are lost", self.path)
            self._close()
            self._reopen()
        self._append(row)

    def _reopen(self) -> None:
        self._file, self._lines = open_private(self.path, "a"), LineFile(self.disk)

    @abstractmethod
    def _append(self, row: Row) -> None:
        """Append a row to the file, or nothing."""

    def _append_text(self, text: str) -> None:
        assert self._file is not None, "it is closed when nothing waits any more"
        self._lines.append(self._file.fileno(), text.encode("utf-8"))

    def _truncate(self, steps: int) -> None:
        """Drop rows after the checkpoint that the run resumes from, and an incomplete last row."""
        with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
            kept = [row for step, row in self._rows(file.read()) if step is None or step < steps]
        temporary = self.path.with_name(self.path.name + ".new")
        write_private(temporary, "".join(kept))
        temporary.replace(self.path)

    @abstractmethod
    def _rows(self, text: str) -> Iterator[tuple[int | None, str]]:
        """The complete rows of the file with their steps; None is a header."""

    @abstractmethod
    def _names_at(self, step: int) -> set[str]:
        """The metrics that the file's last rows have of a step."""

    def _skip_row(self, line: int, error: Exception) -> None:
        """A row that cannot be read is dropped: nothing depends on it."""
        log.warning("%s: line %d cannot be read and is dropped: %s", self.path, line, error)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class JsonlMetrics(_MetricFile):
    """Appends one JSON object per step and per eval to `<output_dir>/metrics.jsonl`, or to `path`.

    NaN and infinities are written as the strings `"NaN"`, `"Infinity"`, `"-Infinity"`, so that every JSON parser reads
    the file.
    """

    default_name = "metrics.jsonl"

    def _truncate(self, steps: int) -> None:
        if not self._ends_before(steps):
            super()._truncate(steps)

    def _ends_before(self, steps: int, block: int = 2**16) -> bool:
        """Whether there is nothing to drop, as when the run itself has truncated the file; read from its end.

        A row with an epoch was written at its own step, so all rows before it are of earlier steps, and the rest of a
        long file need not be read.
        """
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            file.seek(max(0, size - block))
            first, *lines = file.read().split(b"\n")
        lines = [first, *lines] if block >= size else lines
        if lines and lines[-1]:
            return False  # an incomplete row
        for line in reversed(lines[:-1]):
            try:
                row = json.loads(line)
                if row["step"] >= steps:
                    return False
            except (ValueError, TypeError, KeyError, RecursionError):
                return False  # to be dropped
            if "epoch" in row:
                return True
        return block >= size or self._ends_before(steps, 2 * block)

    def _rows(self, text: str) -> Iterator[tuple[int | None, str]]:
        for number, line in enumerate(text.split("\n")[:-1], start=1):
            try:
                step = int(json.loads(line)["step"])
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                self._skip_row(number, error)
            else:
                yield step, f"{line}\n"

    def _names_at(self, step: int) -> set[str]:
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - 2**16))
            lines = file.read().split(b"\n")[:-1]
        names: set[str] = set()
        for line in reversed(lines):
            if not line.startswith(b'{"step": %d,' % step):
                break
            names |= json.loads(line).keys()
        return names

    def _append(self, row: Row) -> None:
        self._append_text(json.dumps(row, allow_nan=False) + "\n")


class CsvMetrics(_MetricFile):
    """Appends one row per step and per eval to `<output_dir>/metrics.csv`, or to `path`.

    A metric that first appears later gets a new column; the file is then rewritten and replaced atomically.
    """

    default_name = "metrics.csv"

    def _rows(self, text: str) -> Iterator[tuple[int | None, str]]:
        lines = [f"{line}\n" for line in text.split("\n")[:-1]]
        reader, begin = csv.reader(lines, strict=True), 0
        with suppress(csv.Error):  # the file ends within quotes: an incomplete row
            for row in reader:  # all columns but the first, which is the step, may have line breaks in quotes
                try:
                    step = None if row[:1] == ["step"] else int(row[0])
                except (ValueError, IndexError) as error:
                    self._skip_row(begin + 1, error)
                else:
                    yield step, "".join(lines[begin : reader.line_num])
                begin = reader.line_num

    def _names_at(self, step: int) -> set[str]:
        with self.path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["step"] == str(step)]
        return {name for row in rows for name, value in row.items() if value}

    def on_train_start(self, state: LoopState) -> None:
        super().on_train_start(state)
        self._read_columns()

    def _reopen(self) -> None:
        super()._reopen()
        self._read_columns()

    def _read_columns(self) -> None:
        with self.path.open(encoding="utf-8", newline="") as file:
            self._columns = next(csv.reader(file), [])

    def _append(self, row: Row) -> None:
        if not row.keys() <= set(self._columns):
            self._widen([*self._columns, *(name for name in row if name not in self._columns)])
        line = io.StringIO()
        csv.DictWriter(line, self._columns, restval="").writerow(row)
        self._append_text(line.getvalue())

    def _widen(self, columns: list[str]) -> None:
        with self.path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        temporary = self.path.with_name(self.path.name + ".new")
        with open_private(temporary, "w") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        wider = open_private(temporary, "a")  # before the old one is closed, so that there is always one to write to
        temporary.replace(self.path)
        self._close()
        self._file, self._columns, self._lines = wider, columns, LineFile(self.disk)


def _row(state: LoopState, step_idx: int, metrics: Mapping[str, object]) -> Row:
    """The row of a step or an eval, without secrets; metrics do not replace the row's own keys."""
    own: Row = {"step": step_idx, "epoch": state.epoch, "time": round(time.time(), 3)}
    if step_idx != state.global_step - 1:
        del own["epoch"]  # an eval that ran in the background: the step's own row has it
    row = redact_metrics({name: _json_value(value) for name, value in metrics.items()})
    return own | row | own


def _json_value(value: Any) -> int | float | str | None:
    """A value as a Python number (also from torch and numpy), or else as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else encode_number(number)
