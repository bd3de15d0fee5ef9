"""Reverse six digits: `594833>` is answered by `338495` and the end token."""

from __future__ import annotations

import random

from ..task import TaskRow
from .characters import SEPARATOR, tokenizer
from .draw import draw_rows
from .places import by_place as reward
from .places import exact

__all__ = ["exact", "reward", "rows", "tokenizer"]

DIGITS = 6


def rows(split: str, count: int, seed: int = 0) -> list[TaskRow]:
    """Distinct prompts of the split, each with its answer."""
    return draw_rows(split, count, seed, prompts=10**DIGITS, row=_row)


def _row(stream: random.Random) -> TaskRow:
    digits = f"{stream.randrange(10**DIGITS):0{DIGITS}}"
    return TaskRow(digits + SEPARATOR, {"answer": digits[::-1]})
