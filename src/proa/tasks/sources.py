"""Finds and reads what a user names as data: a JSONL file, a dataset, or an object at a dotted path."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..dotted import DottedPathError, resolve
from ..spelling import did_you_mean
from .builtin import BUILTIN
from .task import TaskError


def is_file_name(source: str) -> bool:
    return source.endswith((".jsonl", ".json")) or os.sep in source or Path(source).is_file()


def find_source(path: str) -> Any:
    """The object at a dotted path; a function is called."""
    if not any(mark in path for mark in ":."):
        raise TaskError(
            f"unknown task {path!r}{did_you_mean(path, BUILTIN)} (built in: {', '.join(BUILTIN)}; your own: "
            f"'package.module:name', or the path of a JSONL file)"
        )
    try:
        found = resolve(path)
    except DottedPathError as error:
        raise TaskError(f"task {error}") from error
    return found() if callable(found) else found


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a file with one JSON object per line; blank lines are skipped."""
    if not path.is_file():
        raise TaskError(f"there is no file {str(path)!r} (looked in {Path.cwd()})")
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from None
    return [_row(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TaskError(f"{where}: byte 0x{line[error.start]:02x} is not UTF-8: save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise TaskError(f"{where}: this is nested too deep") from None
    if not isinstance(row, dict):
        raise TaskError(f"{where}: expected one JSON object per line, not {line.decode().strip():.40}")
    return row


def check_dataset(dataset: Any) -> None:
    """Raise for a dataset with several splits or without a length."""
    if isinstance(dataset.column_names, Mapping):
        splits = ", ".join(map(repr, dataset.column_names))
        raise TaskError(f"these are several datasets ({splits}): pass one of them, e.g. dataset['train']")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TaskError(
            "a streaming dataset has no length, which a seeded order needs: load it without streaming=True, "
            "or take the first rows: list(dataset.take(10_000))"
        )
