"""Evals of a run: `evals.jsonl` has the scores of each, `evals/<name>/` the predictions."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..data.results import EvalResult, latest_evals
from ..private_files import make_private_folder, write_private
from .durable import open_writable
from .patient_writes import LineFile
from .run_folder import BrokenRecordError, check_regular_file, decode_numbers, encode_number, quoted, scores_line
from .secrets import redact_values

EVALS_NAME = "evals.jsonl"
PREDICTIONS_FOLDER = "evals"
ROLLOUTS_FOLDER = "rollouts"
AFTER_TRAINING = "final"
NOT_FINITE = "not_finite_numbers"
"""The key under which a prediction lists the paths of its NaN and infinite numbers, which are written as text."""
TAIL_BYTES = 1 << 18
"""How much of the end of evals.jsonl is searched first for the last scores: the file may be long."""


class EvalRecord:
    """The evals in one run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / EVALS_NAME
        self._lines = LineFile()

    def append(self, result: EvalResult, predictions: list[dict[str, Any]]) -> None:
        """Write an eval, its predictions first, so that a row never names a missing file."""
        write_predictions(self.folder / predictions_path(result.name, result.step), predictions)
        line = scores_line(asdict(result)).encode("utf-8")
        with open_writable(self.path, os.O_CREAT | os.O_APPEND) as descriptor:
            self._lines.append(descriptor, line)

    def read(self) -> list[EvalResult]:
        """All evals in order, without an incomplete last line. If an eval was repeated, its last result counts."""
        results: dict[tuple[str, int | None], EvalResult] = {}
        for result in self._results(0):
            results.pop((result.name, result.step), None)
            results[result.name, result.step] = result
        return list(results.values())

    def latest(self, names: Iterable[str] = ()) -> dict[str, EvalResult]:
        """The last result of each eval. Only the end of a long file is read if it has all of `names`."""
        size = self.path.stat().st_size if self.path.exists() else 0
        found = latest_evals(self._results(max(0, size - TAIL_BYTES)))
        if size > TAIL_BYTES and not found.keys() >= set(names):
            found = latest_evals(self._results(0))
        return found

    def _results(self, begin: int) -> Iterator[EvalResult]:
        """The results on complete lines after this byte."""
        try:
            check_regular_file(self.path)
            with self.path.open("rb") as file:
                file.seek(begin)
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return
        for number, line in enumerate(lines):
            if begin and number == 0:  # the end of a line
                continue
            try:
                yield eval_result(json.loads(line.decode("utf-8")))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                where = f"line {number + 1}" if begin == 0 else f"the line {line[:40].decode(errors='replace')!r}…"
                raise BrokenRecordError(f"{self.path} is broken at {where}: {error}") from error

    def predictions(self, name: str, step: int | None) -> list[dict[str, Any]]:
        """The predictions of one eval."""
        path = self.folder / predictions_path(name, step)
        try:
            # Not splitlines, which also splits at other characters that a completion may contain.
            return [_restore_numbers(json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise BrokenRecordError(f"{path} is broken: {error}") from error


def eval_result(written: Any) -> EvalResult:
    """An eval's result from its JSON. Keys added by newer versions are ignored."""
    if not isinstance(written, dict):
        raise TypeError(f"expected an eval's result, found a {type(written).__name__}")
    known = {one.name: written[one.name] for one in fields(EvalResult) if written.get(one.name) is not None}
    for key in ("metrics", "breakdowns"):
        known[key] = decode_numbers(known.get(key, {}))
    result = EvalResult(**known)
    if not isinstance(result.name, str):
        raise TypeError(f"its name cannot be {quoted(result.name)}")
    if not _is_nested(result.metrics, 1) or not _is_nested(result.breakdowns, 3):
        raise TypeError("its metrics or breakdowns have the wrong structure")
    if result.step is not None and not (isinstance(result.step, int) and result.step >= -1):
        raise TypeError(f"its step cannot be {quoted(result.step)}")
    return result


def _is_nested(value: Any, depth: int) -> bool:
    """Whether a value is dicts within dicts to this depth."""
    return depth == 0 or (isinstance(value, dict) and all(_is_nested(inner, depth - 1) for inner in value.values()))


def predictions_path(name: str, step: int | None) -> Path:
    """The file of an eval's predictions in a run's folder; `step_<n>` is after n steps."""
    return Path(PREDICTIONS_FOLDER) / name / f"{AFTER_TRAINING if step is None else f'step_{step + 1}'}.jsonl"


def rollouts_path(step: int) -> Path:
    """The file of a training step's recorded completions in a run's folder; `step_<n>` is after n steps."""
    return Path(ROLLOUTS_FOLDER) / f"step_{step + 1}.jsonl"


def steps_before(file: str) -> float:
    """The steps after which predictions or completions were written, by the name of their file.

    >>> steps_before("evals/quiz/step_4.jsonl"), steps_before("evals/quiz/final.jsonl")
    (4, inf)
    """
    number = Path(file).stem.removeprefix("step_")
    return int(number) if number.isdecimal() else math.inf


def write_predictions(file: Path, predictions: list[dict[str, Any]]) -> None:
    """Write one line per prediction, without secrets known by value."""
    make_private_folder(file.parent)
    write_private(file, "".join(map(_prediction_line, redact_values(predictions))))


def _prediction_line(prediction: dict[str, Any]) -> str:
    paths: list[list[str | int]] = []
    row = _replace_numbers(prediction, paths, [])
    content = {**row, NOT_FINITE: paths} if paths else row
    line = json.dumps(content, default=lambda value: redact_values(str(value)), ensure_ascii=False, allow_nan=False)
    # UTF-8 has no lone surrogates, which a dataset may contain; this writes them as JSON's escapes.
    return line.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"


def _replace_numbers(value: Any, paths: list[list[str | int]], path: list[str | int]) -> Any:
    """The value with NaN and infinities as text; their paths are added to `paths`."""
    if isinstance(value, dict):
        return {_key(key): _replace_numbers(inner, paths, [*path, _key(key)]) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_numbers(inner, paths, [*path, place]) for place, inner in enumerate(value)]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    paths.append(path)
    return encode_number(value)


def _key(key: Any) -> str:
    """A key as `json.dumps` writes it, or as its `str` where `json.dumps` would refuse it."""
    return key if isinstance(key, str) else json.dumps(key) if isinstance(key, bool | None) else str(key)


def _restore_numbers(row: Any) -> Any:
    """Undo `_replace_numbers`."""
    for path in row.pop(NOT_FINITE, ()) if isinstance(row, dict) else ():
        inner = row
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = float(inner[path[-1]])
    return row
