"""Batches of prompts in any form: texts, messages, rows of a task, tokens, tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..data.lease import Prompt
from ..data.messages import is_conversation
from ..errors import SettingError
from ..tasks import PromptStream, Task, TaskRow, load_task
from ..tasks.prompts import row_values, tokenise

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def read_batch(batch: Any, tokenizer: PreTrainedTokenizerBase | None, *, first: int) -> list[Prompt]:
    """The prompts of a batch, numbered from `first`.

    A batch is a list of texts, chat messages, rows like `{"prompt": …, "answer": …}`, lists of tokens, tensors of
    tokens or `Prompt`s; or a tensor with a row for each prompt; or a tokenizer's `{"input_ids", "attention_mask"}`.
    Padding is left out: what the mask says, or else the tokenizer's padding token at either end.
    """
    if isinstance(batch, str | bytes) or not isinstance(batch, Iterable):
        raise SettingError(f"a batch is a list of prompts, not {batch!r:.60}: write [{batch!r:.20}]")
    if isinstance(batch, Mapping):
        if "input_ids" not in batch:
            raise SettingError(f"a batch that is a dict has input_ids, as tokenizers give them, not {', '.join(batch)}")
        masks = batch.get("attention_mask")
        rows = [_unpadded(ids, None if masks is None else masks[row], tokenizer)
                for row, ids in enumerate(batch["input_ids"])]  # fmt: skip
    elif isinstance(batch, torch.Tensor):
        rows = [_unpadded(ids, None, tokenizer) for ids in (batch if batch.dim() > 1 else [batch])]
    else:
        rows = list(batch)
    return [_prompt(row, tokenizer, ordinal) for ordinal, row in enumerate(rows, start=first)]


def task_batches(
    task: Task, tokenizer: PreTrainedTokenizerBase, *, size: int, seed: int
) -> Iterator[list[Prompt]]:  # fmt: skip
    """One pass over a task in an order drawn from the seed, in batches of `size` prompts; the last may be smaller."""
    stream = PromptStream(task, tokenizer, seed=seed)
    for first in range(0, len(task.rows), size):
        yield [stream[ordinal] for ordinal in range(first, min(first + size, len(task.rows)))]


def _prompt(given: Any, tokenizer: PreTrainedTokenizerBase | None, ordinal: int) -> Prompt:
    where = f"prompt {ordinal}"
    if isinstance(given, Prompt):
        return Prompt(ordinal, given.tokens, given.text, given.columns)
    if isinstance(given, torch.Tensor) or _are_tokens(given):
        tokens = tuple(int(token) for token in given)
        if not tokens:
            raise SettingError(f"{where} has no tokens")
        return Prompt(ordinal, tokens, "" if tokenizer is None else str(tokenizer.decode(list(tokens))))
    if tokenizer is None:
        raise SettingError(f"{where} is {given!r:.60}, and this maker has no tokenizer: give tokenizer=, or tokens")
    if isinstance(given, str) or is_conversation(given):
        given = TaskRow(given)
    if isinstance(given, Mapping):
        given = load_task([given]).rows[0]
    if not isinstance(given, TaskRow):
        raise SettingError(f"{where} is {given!r:.60}: give a text, chat messages, a row with a prompt, or tokens")
    tokens = tokenise(given, tokenizer, values=row_values(given), where=where)
    return Prompt(ordinal, tokens, given.prompt, given.columns)


def _are_tokens(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(one, int) for one in given)


def _unpadded(ids: Any, mask: Any, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    tokens = [int(token) for token in ids]
    if mask is not None:
        return [token for token, is_real in zip(tokens, mask, strict=True) if is_real]
    padding: Any = getattr(tokenizer, "pad_token_id", None)
    first, last = 0, len(tokens)
    while first < last and tokens[first] == padding:
        first += 1
    while last > first and tokens[last - 1] == padding:
        last -= 1
    return tokens[first:last]
