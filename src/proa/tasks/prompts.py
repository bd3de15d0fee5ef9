"""The seeded order in which a task's prompts are used, pass after pass, ready for the model."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..data.lease import Prompt
from .task import Task, TaskError, TaskRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEPT_PASSES = 3
"""Orders held in memory: leases that are open at once lie in neighbouring passes."""
KEPT_ROWS = 20_000
"""Rows whose tokens are kept from the check before a run; of more, a large task would fill the memory."""


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
        self._longest = 0
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

    def check(self) -> None:
        """Tokenise every row now: a prompt that cannot be used is refused before the run, never in its middle.

        It takes a fraction of a millisecond a row. Tokens of the first `KEPT_ROWS` stay in memory; those of others are
        made again when they are needed.
        """
        with self._lock:
            for index in range(len(self._task.rows)):
                if index < KEPT_ROWS:
                    self._tokens_of(index)
                else:
                    self._tokenised(index)

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt seen so far."""
        with self._lock:
            return self._longest

    def _order(self, pass_number: int) -> list[int]:
        if pass_number not in self._orders:
            if len(self._orders) == KEPT_PASSES:
                del self._orders[next(iter(self._orders))]  # the oldest
            self._orders[pass_number] = _permutation(len(self._task.rows), self._seed, pass_number)
        return self._orders[pass_number]

    def _tokens_of(self, index: int) -> tuple[int, ...]:
        if index not in self._tokens:
            self._tokens[index] = self._tokenised(index)
        return self._tokens[index]

    def _tokenised(self, index: int) -> tuple[int, ...]:
        tokens = tokenise(self._task.rows[index], self._tokenizer, where=f"task {self._task.name!r}, row {index}")
        most = self._max_prompt_tokens
        if most is not None and len(tokens) > most:
            raise TaskError(
                f"task {self._task.name!r}, row {index}: the prompt has {len(tokens)} tokens, more than the {most} "
                f"that the model's context leaves beside sampling.max_new_tokens: shorten it, or leave it out"
            )
        self._longest = max(self._longest, len(tokens))
        return tokens


def tokenise(row: TaskRow, tokenizer: PreTrainedTokenizerBase, *, where: str) -> tuple[int, ...]:
    """The tokens of a row's prompt, as generation continues them: text as the tokenizer takes it, messages through its
    chat template.

    Nothing stands between a prompt and its completion: an end that the tokenizer puts after every text is left out, and
    a message of the assistant at the end of a conversation is continued, where another would begin its turn.
    """
    if isinstance(row.prompt, str):
        tokens = text_tokens(row.prompt, tokenizer)
    else:
        tokens = template_tokens(row.prompt, tokenizer, turn_of(row.prompt), where=where)
    if not tokens:
        raise TaskError(f"{where}: the prompt {row.prompt!r:.40} has no tokens")
    return tokens


def text_tokens(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens of a text that goes on: with what the tokenizer puts before every text, not what it puts after it.

    A beginning that is spelt in the text too, as chat templates write it, is there once.
    """
    encoded = tokenizer(text, return_special_tokens_mask=True)
    tokens, added = encoded["input_ids"], encoded["special_tokens_mask"]
    end = len(tokens)
    while end and added[end - 1]:  # put there by the tokenizer; one that is spelt in the text is not marked
        end -= 1
    begin = int(end > 1 and added[0] == 1 and added[1] == 0 and tokens[0] == tokens[1])
    return tuple(map(int, tokens[begin:end]))


def turn_of(messages: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """What is asked of a chat template: that it go on with the assistant's message, or begin one."""
    is_begun = messages[-1].get("role") == "assistant"
    return {"continue_final_message": True} if is_begun else {"add_generation_prompt": True}


def template_tokens(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    asked: Mapping[str, bool],
    *,
    where: str,
    what: str = "messages",
) -> tuple[int, ...]:
    """The tokens that the tokenizer's chat template makes of messages; if it refuses them, they are named as `what`."""
    encoded = _through_template(messages, tokenizer, where, what, return_dict=True, **asked)
    return tuple(map(int, encoded["input_ids"]))


def template_text(
    messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, asked: Mapping[str, bool], *, where: str
) -> str:
    """The text that the tokenizer's chat template makes of messages."""
    return str(_through_template(messages, tokenizer, where, "messages", tokenize=False, **asked))


def _through_template(
    messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, where: str, what: str, **options: bool
) -> Any:
    if not getattr(tokenizer, "chat_template", None):
        raise TaskError(
            f"{where}: the prompt is chat messages, and this tokenizer has no chat template: use the tokenizer of a "
            f"chat model, set tokenizer.chat_template, or give the prompts as text"
        )
    try:
        messages = _as_the_template_takes_them(messages, tokenizer, where)
        return tokenizer.apply_chat_template(list(messages), **options)  # type: ignore[arg-type, unused-ignore]
    except TaskError:
        raise
    except Exception as error:  # a template is a program of its own, and refuses with its own errors
        raise TaskError(f"{where}: the tokenizer's chat template refuses the {what}: {error}") from error


def _as_the_template_takes_them(
    messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, where: str
) -> Sequence[Mapping[str, Any]]:
    """The same messages; those in parts as their text, where the template would write Python's list of them, and those
    without content, which call tools, without the word None."""
    messages = _without_none(messages, tokenizer, where)
    in_parts = [place for place, one in enumerate(messages) if isinstance(one.get("content"), list | tuple)]
    if not in_parts or _takes_parts(messages, tokenizer):
        return messages
    for place in in_parts:
        if not all(isinstance(part, Mapping) and "text" in part for part in messages[place]["content"]):
            raise TaskError(
                f"{where}: the content of message {place} is a list of parts, which the tokenizer's chat template does "
                "not take, and not all of them are text: give its content as text, or set tokenizer.chat_template"
            )
    return [
        {**one, "content": "".join(str(part["text"]) for part in one["content"])} if place in in_parts else one
        for place, one in enumerate(messages)
    ]


def _without_none(
    messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, where: str
) -> Sequence[Mapping[str, Any]]:
    silent = [place for place, one in enumerate(messages) if one.get("content") is None]
    if not silent:
        return messages
    emptied = [{**one, "content": ""} if place in silent else one for place, one in enumerate(messages)]
    as_given, as_empty = _written(messages, tokenizer), _written(emptied, tokenizer)
    if as_empty is None or (as_given is not None and as_given.count("None") <= as_empty.count("None")):
        return messages
    for place in silent:
        for call in messages[place].get("tool_calls") or ():
            name = call.get("function", call).get("name") if isinstance(call, Mapping) else None
            if name is not None and str(name) not in as_empty:
                raise TaskError(
                    f"{where}: message {place} calls the tool {name!r}, and the tokenizer's chat template writes no "
                    "tool calls: set tokenizer.chat_template to one that does, or leave the row out"
                )
    return emptied


def _written(messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The text that the template makes of messages; None if it refuses them."""
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False))  # type: ignore[arg-type, unused-ignore]
    except Exception:  # a template that puts texts together cannot do so with a list
        return None


def _takes_parts(messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase) -> bool:
    written = _written(messages, tokenizer)
    if written is None:
        return False
    parts = [part for one in messages if isinstance(one.get("content"), list | tuple) for part in one["content"]]
    return not any(str(part) in written for part in parts if isinstance(part, Mapping))


def _permutation(count: int, seed: int, pass_number: int) -> list[int]:
    import torch  # slow to import, and most of this package works without it

    digest = hashlib.blake2b(f"{seed}/pass/{pass_number}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)  # it takes 63 bits
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return order
