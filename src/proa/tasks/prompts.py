"""The seeded order in which a task's prompts are used, pass after pass, ready for the model."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any

from ..data.lease import Prompt
from .task import Task, TaskError, TaskRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHECKED_ROWS = 20_000
"""Rows that are tokenised before a run begins."""
KEPT_PASSES = 3
"""Orders held in memory: leases that are open at once lie in neighbouring passes."""


class PromptStream:
    """`stream[ordinal]` is the prompt at that place of the run: the same whenever, and by whomever, it is asked.

    Pass `k` over `n` rows takes the ordinals `k*n` to `k*n + n - 1`, in an order drawn from the seed and `k`.
    """

    def __init__(
        self, task: Task, tokenizer: PreTrainedTokenizerBase, *, seed: int, max_prompt_tokens: int | None = None
    ) -> None:
        if not len(task.rows):
            raise TaskError(f"task {task.name!r} has no rows")
        self._task = task
        self._tokenizer = tokenizer
        self._seed = seed
        self._max_prompt_tokens = max_prompt_tokens
        self._tokens: dict[int, tuple[int, ...]] = {}
        self._orders: dict[int, list[int]] = {}
        self._lock = threading.Lock()  # makers ask at the same time; fast tokenizers bear one caller

    def __getitem__(self, ordinal: int) -> Prompt:
        if ordinal < 0:
            raise IndexError(f"ordinals count from 0, not from {ordinal}")
        pass_number, place = divmod(ordinal, len(self._task.rows))
        with self._lock:
            index = self._order(pass_number)[place]
            tokens = self._tokens_of(index)
        row = self._task.rows[index]
        return Prompt(ordinal, tokens, row.prompt, row.columns)

    def row_tokens(self, index: int) -> tuple[int, ...]:
        """The tokens of the task's row at that place."""
        with self._lock:
            return self._tokens_of(index)

    def check(self, most: int = CHECKED_ROWS) -> None:
        """Tokenise every row now, or that many, so that a prompt that cannot be used is refused before the run."""
        with self._lock:
            for index in range(min(most, len(self._task.rows))):
                self._tokens_of(index)

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt seen so far."""
        with self._lock:
            return max(map(len, self._tokens.values()), default=0)

    def _order(self, pass_number: int) -> list[int]:
        if pass_number not in self._orders:
            if len(self._orders) == KEPT_PASSES:
                del self._orders[next(iter(self._orders))]  # the oldest
            self._orders[pass_number] = _permutation(len(self._task.rows), self._seed, pass_number)
        return self._orders[pass_number]

    def _tokens_of(self, index: int) -> tuple[int, ...]:
        if index not in self._tokens:
            tokens = tokenise(self._task.rows[index], self._tokenizer, where=f"task {self._task.name!r}, row {index}")
            most = self._max_prompt_tokens
            if most is not None and len(tokens) > most:
                raise TaskError(
                    f"task {self._task.name!r}, row {index}: the prompt has {len(tokens)} tokens, more than the {most} "
                    f"that the model's context leaves beside sampling.max_new_tokens: shorten it, or leave it out"
                )
            self._tokens[index] = tokens
        return self._tokens[index]


def tokenise(row: TaskRow, tokenizer: PreTrainedTokenizerBase, *, where: str) -> tuple[int, ...]:
    """The tokens of a row's prompt: text as the tokenizer takes it, messages through its chat template."""
    if isinstance(row.prompt, str):
        tokens = tokenizer(row.prompt)["input_ids"]
    else:
        tokens = _through_template(row.prompt, tokenizer, where)
    if not len(tokens):
        raise TaskError(f"{where}: the prompt {row.prompt!r:.40} has no tokens")
    return tuple(map(int, tokens))


def _through_template(messages: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase, where: str) -> Any:
    if not getattr(tokenizer, "chat_template", None):
        raise TaskError(
            f"{where}: the prompt is chat messages, and this tokenizer has no chat template: use the tokenizer of a "
            f"chat model, set tokenizer.chat_template, or give the prompts as text"
        )
    try:
        encoded: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    except Exception as error:  # a template is a program of its own, and refuses with its own errors
        raise TaskError(f"{where}: the tokenizer's chat template refuses the messages: {error}") from error
    return encoded["input_ids"]


def _permutation(count: int, seed: int, pass_number: int) -> list[int]:
    import torch  # slow to import, and most of this package works without it

    digest = hashlib.blake2b(f"{seed}/pass/{pass_number}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)  # it takes 63 bits
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return order
