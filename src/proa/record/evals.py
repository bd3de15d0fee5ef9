"""Evals of a run: `evals.jsonl` has the scores of each, `evals/<name>/` the predictions."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..data.results import EvalResult
from ..private_files import make_private_folder, write_private
from .durable import opened_to_write
from .patient_writes import LineFile
from .run_folder import BrokenRecordError, numbers_back, quoted, refuse_pipe, scores_line, spelt
from .secrets import redact_values

EVALS_NAME = "evals.jsonl"
PREDICTIONS_FOLDER = "evals"
ROLLOUTS_FOLDER = "rollouts"
AFTER_TRAINING = "final"
NOT_FINITE = "not_finite_numbers"
"""Where a prediction says which of its texts are numbers that JSON has no word for, by the keys that lead to each."""
TAIL_BYTES = 1 << 18
"""So much of the end of evals.jsonl is looked at first for the last scores: it may be long."""
MOST_STEPS = 1 << 53


class EvalRecord:
    """The evals in one run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / EVALS_NAME
        self._lines = LineFile()

    def append(self, result: EvalResult, predictions: list[dict[str, Any]]) -> None:
        """Write one down: its predictions first, so that a row never names a file that is not there."""
        write_predictions(self.folder / predictions_path(result.name, result.step), predictions)
        line = scores_line(asdict(result)).encode("utf-8")
        with opened_to_write(self.path, os.O_CREAT | os.O_APPEND) as descriptor:
            self._lines.append(descriptor, line)

    def read(self) -> list[EvalResult]:
        """All of them, in order; a last line that was being written is passed over, and of an eval that was repeated
        the last one counts."""
        results: dict[tuple[str, int | None], EvalResult] = {}
        for result in self._results(0):
            results.pop((result.name, result.step), None)
            results[result.name, result.step] = result
        return list(results.values())

    def latest(self, names: Iterable[str] = ()) -> dict[str, EvalResult]:
        """The last of each. Only the end of a long file is read, if all that are named are there."""
        size = self.path.stat().st_size if self.path.exists() else 0
        found = {result.name: result for result in self._results(max(0, size - TAIL_BYTES))}
        if size > TAIL_BYTES and not found.keys() >= set(names):
            found = {result.name: result for result in self._results(0)}
        return found

    def _results(self, begin: int) -> Iterator[EvalResult]:
        """Those on whole lines from this byte on."""
        try:
            refuse_pipe(self.path)
            with self.path.open("rb") as file:
                file.seek(begin)
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return
        for number, line in enumerate(lines):
            if begin and number == 0:  # the end of one
                continue
            try:
                yield eval_result(json.loads(line.decode("utf-8")))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                where = f"line {number + 1}" if begin == 0 else f"the line {line[:40].decode(errors='replace')!r}…"
                raise BrokenRecordError(f"{self.path} is broken at {where}: {error}") from error

    def predictions(self, name: str, step: int | None) -> list[dict[str, Any]]:
        """The rows of one eval."""
        path = self.folder / predictions_path(name, step)
        try:
            # Not splitlines: a completion may hold other characters that it takes for the end of a line.
            return [_numbers_in(json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise BrokenRecordError(f"{path} is broken: {error}") from error


def eval_result(written: Any) -> EvalResult:
    """An eval's result from what was written of it. Keys that a newer version added are left out."""
    if not isinstance(written, dict):
        raise TypeError(f"a {type(written).__name__} stands where an eval's result should")
    known = {one.name: written[one.name] for one in fields(EvalResult) if written.get(one.name) is not None}
    for key in ("metrics", "breakdowns"):
        known[key] = numbers_back(known.get(key, {}))
    result = EvalResult(**known)
    if not isinstance(result.name, str):
        raise TypeError(f"its name cannot be {quoted(result.name)}")
    if not _is_nested(result.metrics, 1) or not _is_nested(result.breakdowns, 3):
        raise TypeError("its metrics or breakdowns are not those of an eval")
    if result.step is not None and not (isinstance(result.step, int) and -1 <= result.step < MOST_STEPS):
        raise TypeError(f"its step cannot be {quoted(result.step)}")
    return result


def _is_nested(value: Any, depth: int) -> bool:
    """Whether these are objects within objects, so deep."""
    return depth == 0 or (isinstance(value, dict) and all(_is_nested(inner, depth - 1) for inner in value.values()))


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
    paths: list[list[str | int]] = []
    row = _spelt_out(prediction, paths, [])
    told = {**row, NOT_FINITE: paths} if paths else row
    line = _dumped(told, ensure_ascii=False)
    # Half a character, which a tokenizer may cut off, cannot be written but as an escape.
    return (line if _can_be_written(line) else _dumped(told, ensure_ascii=True)) + "\n"


def _dumped(content: Any, *, ensure_ascii: bool) -> str:
    return json.dumps(content, default=_in_words, ensure_ascii=ensure_ascii, allow_nan=False)


def _in_words(value: Any) -> Any:
    return redact_values(str(value))


def _can_be_written(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _spelt_out(value: Any, paths: list[list[str | int]], path: list[str | int]) -> Any:
    """The same with numbers that JSON has no word for as texts, and the keys that lead to each put among `paths`."""
    if isinstance(value, dict):
        return {_key(key): _spelt_out(inner, paths, [*path, _key(key)]) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_spelt_out(inner, paths, [*path, place]) for place, inner in enumerate(value)]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    paths.append(path)
    return spelt(value)


def _key(key: Any) -> str:
    """As JSON would have it, and for what it would refuse, as text."""
    return key if isinstance(key, str) else json.dumps(key) if isinstance(key, bool | None) else str(key)


def _numbers_in(row: Any) -> Any:
    """A prediction as it was before it was written."""
    for path in row.pop(NOT_FINITE, ()) if isinstance(row, dict) else ():
        inner = row
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = float(inner[path[-1]])
    return row
