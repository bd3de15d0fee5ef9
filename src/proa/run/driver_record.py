"""The record of a run in its driver process: its files, and the callbacks that live there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..callbacks import ConsoleProgress, JsonlMetrics
from ..data.results import EvalResult, LogContext
from ..lifecycle.manager import CallbackManager
from ..record.evals import EvalRecord, rollouts_path, write_predictions
from ..record.journal import Journal
from ..record.patient_writes import PatientWrites, RecordError
from ..record.run_record import RECORD_FILES, StepRecord
from ..record.spans import SpanRecord
from ..resume.random_state import random_state


class DriverRecord:
    """The record in the run's driver, with the callbacks that live there."""

    def __init__(self, folder: Path, manager: CallbackManager, ctx: LogContext) -> None:
        self.folder = folder
        self.manager = manager
        self.ctx = ctx
        self._journal = Journal(folder)
        self._evals = EvalRecord(folder)
        self._spans = SpanRecord(folder)
        self._writes = PatientWrites()

    def before_saving(self) -> dict[str, Any]:
        self.finish()  # a checkpoint notes the record's lengths, which must be on disk
        return {
            "callbacks": self.manager.state_dict(),
            "random": random_state(),
            "record": {name: _synced_size(self.folder / name) for name in RECORD_FILES},
        }

    def write_step(self, record: StepRecord) -> None:
        write, rollouts = self._writes.write, self.folder / rollouts_path(record.step)
        if record.journal:
            write(self._journal.path, lambda: self._journal.append(record.journal))
        if record.spans:
            write(self._spans.path, lambda: self._spans.append(record.spans))
        if record.rollouts:
            write(rollouts, lambda: write_predictions(rollouts, record.rollouts))
            for callback in self.manager.callbacks:
                if isinstance(callback, ConsoleProgress):
                    callback.take_sample(
                        next((one for one in record.rollouts if "trajectory" in one), record.rollouts[0])
                    )

    def finish(self) -> None:
        """Write what could not be written before; raise if it still cannot."""
        self._writes.finish()
        for callback in self.manager.callbacks:
            if isinstance(callback, JsonlMetrics) and callback.required:
                callback.catch_up()

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Write everything at the end. If that fails, so does the run, but an earlier error takes precedence."""
        try:
            yield
        except BaseException:
            with suppress(RecordError):
                self.finish()
            raise
        self.finish()

    def report_eval(self, result: EvalResult, predictions: list[dict[str, Any]]) -> None:
        self._writes.write(self._evals.path, lambda: self._evals.append(result, predictions))
        self.manager.fire("benchmark_eval", self.ctx, result, predictions, result.step)


def _synced_size(path: Path) -> int:
    """A file's length after writing it to disk: a checkpoint must not count lines that a power cut could remove."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size
