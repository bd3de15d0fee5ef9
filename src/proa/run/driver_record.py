"""The record of a run in the process that drives it: its files, and the callbacks that live with it."""

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
        self.finish()  # what a checkpoint says of the record must be on the disk
        return {
            "callbacks": self.manager.state_dict(),
            "random": random_state(),
            "record": {name: _lasting_size(self.folder / name) for name in RECORD_FILES},
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
        """Write what the disk did not take before; raise if it still does not."""
        self._writes.finish()
        for callback in self.manager.callbacks:
            if isinstance(callback, JsonlMetrics) and callback.required:
                callback.catch_up()

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """At the end all is written, or a run that went well has failed; one that failed keeps its own error."""
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


def _lasting_size(path: Path) -> int:
    """Its length, all of which is on the disk: a checkpoint must not name lines that a power cut takes away."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size
