"""Draws distinct rows for the train or the test split, so that no prompt can be in both."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

from ..task import TaskError, TaskRow

SPLITS = ("train", "test")
_ONE_IN = 8  # prompts that belong to the test split


def draw_rows(
    split: str, count: int, seed: int, *, prompts: int, row: Callable[[random.Random], TaskRow]
) -> list[TaskRow]:
    """`count` rows with distinct prompts of a task that has `prompts` different ones; `row` draws one.

    A hash of the prompt says which split it belongs to, whatever the seed and the count.
    """
    if split not in SPLITS:
        raise TaskError(f"split must be 'train' or 'test', not {split!r}")
    share = 1 if split == "test" else _ONE_IN - 1
    most = prompts * share // _ONE_IN // 2  # half of the split: then few draws are in vain
    if not 1 <= count <= most:
        raise TaskError(f"the {split} split of this task has 1 to {most} rows to give, not {count}")
    stream = random.Random(f"{split}/{seed}")  # noqa: S311 - no secret
    rows: dict[str, TaskRow] = {}
    while len(rows) < count:
        drawn = row(stream)
        prompt = str(drawn.prompt)
        if split_of(prompt) == split:
            rows.setdefault(prompt, drawn)
    return list(rows.values())


def split_of(prompt: str) -> str:
    """The split that a prompt belongs to."""
    return "test" if hashlib.blake2b(prompt.encode(), digest_size=1).digest()[0] % _ONE_IN == 0 else "train"
