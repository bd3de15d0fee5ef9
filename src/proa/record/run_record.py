"""The record of a run beside its metrics, written step by step by one process, wherever the trainer is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..data.results import EvalResult
from .evals import EVALS_NAME
from .journal import JOURNAL_NAME, JournalEntry
from .spans import SPANS_NAME, Span

RECORD_FILES = ("metrics.jsonl", JOURNAL_NAME, EVALS_NAME, SPANS_NAME)
"""The files that are appended to; a resumed run truncates them to their length at its checkpoint."""


@dataclass(frozen=True)
class StepRecord:
    """The record of one step, beside its metrics."""

    step: int
    journal: list[JournalEntry]
    """Decisions that the seed does not determine."""
    spans: list[Span]
    rollouts: list[dict[str, Any]]


class RunRecord(Protocol):
    """The record of a run, as trainer rank 0 writes it: in its own process, or in the driver's."""

    def before_saving(self) -> dict[str, Any]:
        """The record's part of a checkpoint: `callbacks`, `random`, and `record`, the lengths of its files."""

    def write_step(self, record: StepRecord) -> None: ...

    def report_eval(self, result: EvalResult, predictions: list[dict[str, Any]]) -> None:
        """Write the scores and predictions of an eval, and fire `benchmark_eval`."""
