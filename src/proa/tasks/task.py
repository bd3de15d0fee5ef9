"""A task: prompts with columns for rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import SettingError


class TaskError(SettingError):
    """The data of a task cannot be used as given."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A prompt, as text or as chat messages, and the other columns of its row.

    An empty prompt with a `completion` is a text to learn whole.
    """

    prompt: str | list[dict[str, str]]
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatRow(TaskRow):
    """A row with messages that are tokenised in place of its prompt, which is what rewards see."""

    messages: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Task:
    """Named rows; some tasks have their own reward."""

    name: str
    rows: Sequence[TaskRow]
    reward: Callable[..., list[float | None]] | None = None


def check_columns(task: Task) -> None:
    """Raise unless all rows have the same columns, which rewards get as lists."""
    if not task.rows:
        return
    first = task.rows[0].columns.keys()
    for place, row in enumerate(task.rows):
        if row.columns.keys() != first:
            name = min(row.columns.keys() ^ first)
            raise TaskError(f"task {task.name!r}, row {place}: {name!r} is in some rows and not in others")
