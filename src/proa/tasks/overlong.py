"""Rows that are too long for the model: refused, left out, or with a prompt that loses its first tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from .task import TaskError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("proa.tasks")

Overlong: TypeAlias = Literal["error", "drop", "truncate_left"]
"""What becomes of a row that is too long. Completions are never cut: a model would learn to stop anywhere, or never."""
Row = TypeVar("Row")


class OverlongError(TaskError):
    """A row does not fit in the model's context."""


def leave_out_overlong(rows: Sequence[Row], tokenise: Callable[[int], object], name: str) -> list[Row]:
    """The rows that fit; `tokenise` raises `OverlongError` for the place of one that does not. How many is said."""
    kept: list[Row] = []
    first: OverlongError | None = None
    for place, row in enumerate(rows):
        try:
            tokenise(place)
        except OverlongError as error:
            first = first or error
        else:
            kept.append(row)
    if not kept:
        raise TaskError(f"{name}: all {len(rows):,} rows are too long, and task.overlong: drop leaves none: {first}")
    if len(kept) < len(rows):
        log.warning("%s: %s of %s rows are too long and left out", name, f"{len(rows) - len(kept):,}", f"{len(rows):,}")
    return kept


def cut_prompt(tokens: tuple[int, ...], most: int, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The last `most` tokens of a prompt; a beginning-of-sequence token stays the first."""
    if len(tokens) <= most:
        return tokens
    if most > 1 and tokens[0] == tokenizer.bos_token_id:
        return tokens[:1] + tokens[1 - most :]
    return tokens[-most:]


def say_cut(count: int, rows: int, name: str) -> None:
    """Say how many prompts were cut."""
    if count:
        log.warning("%s: %s of %s prompts are too long and lose their first tokens", name, f"{count:,}", f"{rows:,}")
