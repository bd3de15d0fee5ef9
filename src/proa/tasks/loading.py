"""Makes a task of what a user has: rows, a file, a dataset, a dotted path, or the name of a built-in one.

Datasets of other libraries are recognised by their shape, so that none of those libraries is imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ..data.messages import is_conversation
from ..dotted import DottedPathError, resolve
from ..spelling import did_you_mean
from .builtin import BUILTIN, builtin_task
from .reasoning_gym import PREFIX, ReasoningGymReward, looks_like_reasoning_gym, named_dataset
from .task import Task, TaskError, TaskRow

_TAKEN = ("prompts", "completions")  # by these names rewards get something else


def load_task(source: Any, *, prompt_column: str = "prompt", name: str | None = None) -> Task:
    """The task that `source` stands for.

    A list of dicts, the path of a JSONL file, a Hugging Face dataset, a reasoning-gym dataset (its reward
    comes along) or `reasoning_gym:name?seed=1&size=200` for one, the name of a built-in task, or
    `package.module:name` of any of these or of a function that returns one.

    >>> load_task([{"prompt": "2+2=", "answer": "4"}]).rows[0]
    TaskRow(prompt='2+2=', columns={'answer': '4'})
    """
    if isinstance(source, Task):
        return source
    if isinstance(source, str) and source in BUILTIN:
        built = builtin_task(source)
        return replace(built, name=name or built.name)
    if isinstance(source, str) and source.startswith(PREFIX):
        return load_task(named_dataset(source), name=name)
    if isinstance(source, Path) or (isinstance(source, str) and _looks_like_a_file(source)):
        path = Path(source)
        return Task(name or path.stem, _rows(_read_jsonl(path), prompt_column, str(path)))
    if isinstance(source, str):
        return load_task(
            _find(source), prompt_column=prompt_column, name=name or source.replace(":", ".").split(".")[-1]
        )
    if looks_like_reasoning_gym(source):
        rows = _rows((dict(source[index]) for index in range(len(source))), "question", "the reasoning-gym dataset")
        return Task(name or _reasoning_gym_name(rows), rows, ReasoningGymReward(source))
    if hasattr(source, "column_names"):
        _check_dataset(source)
        return Task(name or "dataset", _rows((dict(row) for row in source), prompt_column, "the dataset"))
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        return Task(name or "task", _rows(source, prompt_column, "the list"))
    raise TaskError(
        f"no task can be made of {source!r:.80}: give a list of dicts, the path of a JSONL file, a dataset, "
        f"'package.module:name', or a built-in task ({', '.join(BUILTIN)})"
    )


def _looks_like_a_file(source: str) -> bool:
    return source.endswith((".jsonl", ".json")) or os.sep in source or Path(source).is_file()


def _find(path: str) -> Any:
    """What a dotted path names; a function is called."""
    if not any(mark in path for mark in ":."):
        raise TaskError(
            f"no task is called {path!r}{did_you_mean(path, BUILTIN)} (built in: {', '.join(BUILTIN)}; your own: "
            f"'package.module:name', or the path of a JSONL file)"
        )
    try:
        found = resolve(path)
    except DottedPathError as error:
        raise TaskError(f"task {error}") from error
    return found() if callable(found) else found


def _read_jsonl(path: Path) -> list[Any]:
    if not path.is_file():
        raise TaskError(f"there is no file {str(path)!r} (looked in {Path.cwd()})")
    rows = []
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    rows.append(_parsed(line, f"{path}, line {number}"))
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from None
    return rows


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        line.encode()
        row = json.loads(line)
    except UnicodeEncodeError as error:  # `surrogateescape` put the byte there
        byte = ord(line[error.start]) & 0xFF
        raise TaskError(f"{where}: byte 0x{byte:02x} is not UTF-8: save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise TaskError(f"{where}: this is nested too deep") from None
    except ValueError as error:  # a number of thousands of digits
        raise TaskError(f"{where}: {error}") from None
    if not isinstance(row, dict):
        raise TaskError(f"{where}: one JSON object per line is wanted, not {line.strip():.40}")
    return row


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset.column_names, Mapping):
        splits = ", ".join(map(repr, dataset.column_names))
        raise TaskError(f"these are several datasets ({splits}): pass one of them, e.g. dataset['train']")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TaskError(
            "a streaming dataset has no length, and a seeded order needs one: load it without streaming=True, "
            "or take the first rows: list(dataset.take(10_000))"
        )


def _rows(rows: Iterable[Any], prompt_column: str, whence: str) -> list[TaskRow]:
    made = [_row(row, prompt_column, f"{whence}, row {index}") for index, row in enumerate(rows)]
    if not made:
        raise TaskError(f"{whence} is empty: a task needs at least one row")
    return made


def _row(row: Any, prompt_column: str, where: str) -> TaskRow:
    if isinstance(row, TaskRow):
        return row
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: a row is a dict like {{'prompt': ..., 'answer': ...}}, not {row!r:.60}")
    if prompt_column not in row:
        names = [str(name) for name in row]
        raise TaskError(
            f"{where} has no column {prompt_column!r}{did_you_mean(prompt_column, names)} (it has: "
            f"{', '.join(names) or 'none'}); the column of the prompts is chosen by prompt_column="
            f"{'messages, for conversations to learn from' if 'messages' in row else ''}"
        )
    columns = {str(name): value for name, value in row.items() if name != prompt_column}
    for name in _TAKEN:
        if name in columns:
            raise TaskError(f"{where}: a column may not be called {name!r}, rewards get the {name} themselves so")
    return TaskRow(_checked_prompt(row[prompt_column], where), columns)


def _checked_prompt(prompt: Any, where: str) -> str | list[dict[str, str]]:
    if isinstance(prompt, str) and prompt:
        return prompt
    if is_conversation(prompt):
        return cast("list[dict[str, str]]", prompt)
    raise TaskError(
        f"{where}: a prompt is some text, or chat messages like [{{'role': 'user', 'content': 'Hello'}}], "
        f"not {prompt!r:.60}"
    )


def _reasoning_gym_name(rows: Sequence[TaskRow]) -> str:
    return str(rows[0].columns["metadata"].get("source_dataset", "reasoning_gym"))
