"""Loads a task from rows, a file, a dataset, a dotted path, or the name of a built-in task.

Datasets of other libraries are recognised by their attributes, so that none of these libraries is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ..data.messages import is_conversation
from ..spelling import did_you_mean
from .builtin import BUILTIN, builtin_task
from .formats import PROMPTS, Columns, Format, advice, examples, recognise, rename
from .reasoning_gym import PREFIX, ReasoningGymReward, looks_like_reasoning_gym, named_dataset
from .sources import FILES, find_source, is_named_data, read_table
from .task import Task, TaskError, TaskRow

log = logging.getLogger("proa.tasks")
_RESERVED = ("prompts", "completions")  # arguments of rewards


def load_task(
    source: Any,
    *,
    prompt_column: str = "prompt",
    columns: Columns | None = None,
    split: str | None = None,
    name: str | None = None,
) -> Task:
    """The task that `source` names or holds: prompts to generate from, with columns for rewards.

    A list of dicts, the path of a JSONL, JSON, CSV or Parquet file, a Hugging Face dataset, the folder of a saved one,
    or `hf:openai/gsm8k?config=main&split=train` for one of the Hub; a reasoning-gym dataset (its reward comes along)
    or `reasoning_gym:name?seed=1&size=200` for one; the name of a built-in task; or `package.module:name` of any of
    these or of a function that returns one. `columns` renames columns, `{"prompt": "question"}`; `prompt_column` is
    short for that one. `split` chooses from several datasets.

    >>> load_task([{"prompt": "2+2=", "answer": "4"}]).rows[0]
    TaskRow(prompt='2+2=', columns={'answer': '4'})
    """
    return _load(source, PROMPTS, _all_columns(columns, prompt_column), split, name)


def load_examples(
    source: Any,
    *,
    answer_column: str = "answer",
    prompt_column: str = "prompt",
    columns: Columns | None = None,
    split: str | None = None,
    name: str | None = None,
) -> Task:
    """The same for examples to learn from: prompts with completions, conversations, or texts.

    >>> load_examples([{"instruction": "Add.", "input": "2+2", "output": "4"}]).rows[0]
    TaskRow(prompt=[{'role': 'user', 'content': 'Add.\\n2+2'}], columns={'completion': '4'})
    """
    return _load(source, examples(answer_column), _all_columns(columns, prompt_column), split, name)


def _all_columns(columns: Columns | None, prompt_column: str) -> Columns:
    return {**({} if prompt_column == "prompt" else {"prompt": prompt_column}), **(columns or {})}


def _load(source: Any, formats: Sequence[Format], columns: Columns, split: str | None, name: str | None) -> Task:
    if isinstance(source, Task):
        return source
    if isinstance(source, str) and source in BUILTIN:
        built = builtin_task(source)
        return replace(built, name=name or built.name)
    if isinstance(source, str) and source.startswith(PREFIX):
        return _load(named_dataset(source), formats, columns, split, name)
    if isinstance(source, str) and not is_named_data(source):
        short = name or source.replace(":", ".").split(".")[-1]
        return _load(find_source(source), formats, columns, split, short)
    if looks_like_reasoning_gym(source):
        asked = (rename(dict(source[index]), {"prompt": "question"}, "") for index in range(len(source)))
        rows = _rows(asked, "the reasoning-gym dataset")
        source_name = str(rows[0].columns["metadata"].get("source_dataset", "reasoning_gym"))
        return Task(name or source_name, rows, ReasoningGymReward(source))
    table = read_table(source, split)
    if table is None:
        raise TaskError(
            f"{source!r:.80} is not a task: give a list of dicts, a dataset, a file ({', '.join(FILES)}), "
            f"'package.module:name', or a built-in task ({', '.join(BUILTIN)})"
        )
    return Task(name or table.name, _rows(_read_as(table.rows, formats, columns, table.origin), table.origin))


def _read_as(rows: Sequence[Any], formats: Sequence[Format], columns: Columns, origin: str) -> Iterable[Any]:
    """The rows in the form that the rest of the package reads; what the first one has is expected of all."""
    if not rows or not isinstance(rows[0], Mapping):
        return rows
    renamed = [rename(row, columns, f"{origin}, row {index}") for index, row in enumerate(rows)]
    first = renamed[0]
    found = recognise(first, formats, columns, origin)
    if found is None and "prompt" in first:
        found = PROMPTS[0]  # a whole conversation, perhaps; whoever learns from it says what is missing
    if found is None:
        raise TaskError(advice(first, formats, origin))
    read = {*found.columns, *found.optional}
    others = [str(name) for name in first if name not in read]
    log.info(
        "data: %s row%s of %s%s, from %s", f"{len(rows):,}", "s" * (len(rows) > 1), found.describe(first),
        f" with {', '.join(others)}" if others else "", origin,
    )  # fmt: skip
    return [_rewritten(row, found, f"{origin}, row {index}") for index, row in enumerate(renamed)]


def _rewritten(row: Any, found: Format, where: str) -> Any:
    if not isinstance(row, Mapping):
        return row
    if missing := [name for name in found.columns if name not in row]:
        names = [str(name) for name in row]
        raise TaskError(
            f"{where} has no column {missing[0]!r}{did_you_mean(missing[0], names)} (it has: "
            f"{', '.join(names) or 'none'})"
        )
    return found.rewrite(row, where)


def _rows(rows: Iterable[Any], origin: str) -> list[TaskRow]:
    loaded = [_row(row, f"{origin}, row {index}") for index, row in enumerate(rows)]
    if not loaded:
        raise TaskError(f"{origin} is empty: a task needs at least one row")
    return loaded


def _row(row: Any, where: str) -> TaskRow:
    if isinstance(row, TaskRow):
        return row
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: a row is a dict like {{'prompt': ..., 'answer': ...}}, not {row!r:.60}")
    columns = {str(name): value for name, value in row.items() if name != "prompt"}
    for name in _RESERVED:
        if name in columns:
            raise TaskError(
                f"{where}: a column may not be called {name!r}, the name under which rewards get the {name}"
            )
    return TaskRow(_checked_prompt(row["prompt"], where), columns)


def _checked_prompt(prompt: Any, where: str) -> str | list[dict[str, str]]:
    if isinstance(prompt, str) and prompt:
        return prompt
    if is_conversation(prompt):
        return cast("list[dict[str, str]]", prompt)
    raise TaskError(
        f"{where}: a prompt is some text, or chat messages like [{{'role': 'user', 'content': 'Hello'}}], "
        f"not {prompt!r:.60}"
    )
