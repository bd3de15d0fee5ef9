"""Small tasks that need no download: a tiny model learns them on a laptop in minutes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BUILTIN = ("add_digits", "look_up", "reverse_digits", "sort_digits")
"""Each is a module here, with `rows`, `reward`, `exact` and `tokenizer`."""

ROWS = 25_000


def builtin_task(name: str, split: str = "train", count: int | None = None, seed: int = 0) -> Task:
    """A built-in task with its reward.

    >>> builtin_task("reverse_digits", "test", count=1).rows[0].columns.keys()
    dict_keys(['answer'])
    """
    module = importlib.import_module(f".{name}", __package__)
    return Task(name, module.rows(split, count or getattr(module, "ROWS", ROWS), seed), module.reward)


def builtin_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer that a built-in task is made for."""
    tokenizer: PreTrainedTokenizerFast = importlib.import_module(f".{name}", __package__).tokenizer()
    return tokenizer
