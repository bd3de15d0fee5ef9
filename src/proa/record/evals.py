"""Evals of a run: `evals.jsonl` has the scores of each, `evals/<name>/` the predictions."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..data.results import EvalResult
from ..private_files import make_private_folder, write_private
from .durable import opened
from .run_folder import BrokenRecordError, as_json_line, numbers_back
from .secrets import redact_values

EVALS_NAME = "evals.jsonl"
PREDICTIONS_FOLDER = "evals"
ROLLOUTS_FOLDER = "rollouts"
AFTER_TRAINING = "final"


class EvalRecord:
    """The evals in one run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / EVALS_NAME

    def append(self, result: EvalResult, predictions: list[dict[str, Any]]) -> None:
        """Write one down: its predictions first, so that a row never names a file that is not there."""
        write_predictions(self.folder / predictions_path(result.name, result.step), predictions)
        line = as_json_line(asdict(result)).encode("utf-8")
        with opened(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            while line:
                line = line[os.write(descriptor, line) :]

    def read(self) -> list[EvalResult]:
        """All of them, in order; a last line that was being written is passed over, and of an eval that was repeated
        the last one counts."""
        try:
            *lines, _torn = self.path.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return []
        results: dict[tuple[str, int | None], EvalResult] = {}
        for number, line in enumerate(lines, start=1):
            try:
                result = eval_result(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise BrokenRecordError(f"{self.path} is broken at line {number}: {error}") from error
            results.pop((result.name, result.step), None)
            results[result.name, result.step] = result
        return list(results.values())

    def predictions(self, name: str, step: int | None) -> list[dict[str, Any]]:
        """The rows of one eval."""
        path = self.folder / predictions_path(name, step)
        try:
            # Not splitlines: a completion may hold other characters that it takes for the end of a line.
            return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        except ValueError as error:
            raise BrokenRecordError(f"{path} is broken: {error}") from error


def eval_result(written: dict[str, Any]) -> EvalResult:
    """An eval's result from what was written of it."""
    numbers = {key: numbers_back(written[key]) for key in ("metrics", "breakdowns")}
    return EvalResult(**{**written, **numbers})


def predictions_path(name: str, step: int | None) -> Path:
    """Where the predictions of an eval lie in a run's folder. `step_<n>` is after n steps."""
    return Path(PREDICTIONS_FOLDER) / name / f"{AFTER_TRAINING if step is None else f'step_{step + 1}'}.jsonl"


def rollouts_path(step: int) -> Path:
    """Where completions lie that were kept of a step of training; `step_<n>` is after n steps."""
    return Path(ROLLOUTS_FOLDER) / f"step_{step + 1}.jsonl"


def write_predictions(file: Path, predictions: list[dict[str, Any]]) -> None:
    """One line each, without secrets known by value."""
    make_private_folder(file.parent)
    write_private(file, "".join(map(_prediction_line, redact_values(predictions))))


def _prediction_line(prediction: dict[str, Any]) -> str:
    """A key's name says nothing here: a completion, or a column called `token`, is data."""
    return json.dumps(prediction, default=lambda value: redact_values(str(value)), ensure_ascii=False) + "\n"
