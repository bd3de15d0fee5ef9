"""Loads a task from rows, a file, a dataset, a dotted path, or the name of a built-in task.

Datasets of other libraries are recognised by their attributes, so that none of these libraries is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ..data.messages import is_conversation
from ..spelling import did_you_mean
from .builtin import BUILTIN, builtin_task
from .reasoning_gym import PREFIX, ReasoningGymReward, looks_like_reasoning_gym, named_dataset
from .sources import check_dataset, find_source, is_file_name, read_jsonl
from .task import Task, TaskError, TaskRow

_RESERVED = ("prompts", "completions")  # arguments of rewards


def load_task(source: Any, *, prompt_column: str = "prompt", name: str | None = None) -> Task:
    """The task that `source` names or holds.

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
    if isinstance(source, Path) or (isinstance(source, str) and is_file_name(source)):
        path = Path(source)
        return Task(name or path.stem, _rows(read_jsonl(path), prompt_column, str(path)))
    if isinstance(source, str):
        return load_task(
            find_source(source), prompt_column=prompt_column, name=name or source.replace(":", ".").split(".")[-1]
        )
    if looks_like_reasoning_gym(source):
        rows = _rows((dict(source[index]) for index in range(len(source))), "question", "the reasoning-gym dataset")
        source_name = str(rows[0].columns["metadata"].get("source_dataset", "reasoning_gym"))
        return Task(name or source_name, rows, ReasoningGymReward(source))
    if hasattr(source, "column_names"):
        check_dataset(source)
        return Task(name or "dataset", _rows((dict(row) for row in source), prompt_column, "the dataset"))
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        return Task(name or "task", _rows(source, prompt_column, "the list"))
    raise TaskError(
        f"{source!r:.80} is not a task: give a list of dicts, the path of a JSONL file, a dataset, "
        f"'package.module:name', or a built-in task ({', '.join(BUILTIN)})"
    )


def _rows(rows: Iterable[Any], prompt_column: str, origin: str) -> list[TaskRow]:
    loaded = [_row(row, prompt_column, f"{origin}, row {index}") for index, row in enumerate(rows)]
    if not loaded:
        raise TaskError(f"{origin} is empty: a task needs at least one row")
    return loaded


def _row(row: Any, prompt_column: str, where: str) -> TaskRow:
    if isinstance(row, TaskRow):
        return row
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: a row is a dict like {{'prompt': ..., 'answer': ...}}, not {row!r:.60}")
    if prompt_column not in row:
        names = [str(name) for name in row]
        raise TaskError(
            f"{where} has no column {prompt_column!r}{did_you_mean(prompt_column, names)} (it has: "
            f"{', '.join(names) or 'none'}); choose the column of the prompts with prompt_column="
            f"{'messages, for conversations to learn from' if 'messages' in row else ''}"
        )
    columns = {str(name): value for name, value in row.items() if name != prompt_column}
    for name in _RESERVED:
        if name in columns:
            raise TaskError(
                f"{where}: a column may not be called {name!r}, the name under which rewards get the {name}"
            )
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
