"""Small tasks that need no download: a tiny model learns them on a laptop in minutes."""

from __future__ import annotations

import importlib

from ..task import Task

BUILTIN = ("add_digits", "reverse_digits", "sort_digits")
"""Each is a module here, with `rows`, `reward`, `exact` and `tokenizer`."""

ROWS = 25_000


def builtin_task(name: str, split: str = "train", count: int = ROWS, seed: int = 0) -> Task:
    """A built-in task with its reward.

    >>> builtin_task("reverse_digits", "test", count=1).rows[0].columns.keys()
    dict_keys(['answer'])
    """
    module = importlib.import_module(f".{name}", __package__)
    return Task(name, module.rows(split, count, seed), module.reward)
