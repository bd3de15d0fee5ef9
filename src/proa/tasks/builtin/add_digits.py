"""Add two numbers of three digits: `123+456>` is answered by `0579` and the end token."""

from __future__ import annotations

import random

from ..task import TaskRow
from .characters import SEPARATOR, tokenizer
from .draw import draw_rows
from .places import by_place as reward
from .places import exact

__all__ = ["exact", "reward", "rows", "tokenizer"]

DIGITS = 3


def rows(split: str, count: int, seed: int = 0) -> list[TaskRow]:
    """Distinct prompts of the split; the sums are written with four digits, so that each place has its meaning."""
    return draw_rows(split, count, seed, prompts=10 ** (2 * DIGITS), row=_row)


def _row(stream: random.Random) -> TaskRow:
    first, second = stream.randrange(10**DIGITS), stream.randrange(10**DIGITS)
    prompt = f"{first:0{DIGITS}}+{second:0{DIGITS}}{SEPARATOR}"
    return TaskRow(prompt, {"answer": f"{first + second:0{DIGITS + 1}}"})
