"""A task's prompts as tokens, in a seeded order, pass after pass."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..data.lease import Prompt
from ..data.messages import Messages
from .overlong import Overlong, OverlongError, cut_prompt, leave_out_overlong, say_cut
from .task import ChatRow, Task, TaskError, TaskRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEPT_PASSES = 3
"""Orders kept in memory: leases that are open at the same time are in neighbouring passes."""
KEPT_ROWS = 20_000
"""How many rows' tokens are kept in memory."""
NO_VALUES: Mapping[str, Any] = MappingProxyType({})


class PromptStream:
    """`stream[ordinal]` is the prompt at that place of the run, the same for every caller at any time.

    Pass `k` over `n` rows has the ordinals `k*n` to `k*n + n - 1`, in an order drawn from the seed and `k`. A prompt of
    more than `max_prompt_tokens` is refused, or cut at its beginning; `overlong="drop"` leaves its row out at once.

    With `begins_conversations` prompts are handed out without tokens: what a model is given first is an environment's
    to say, with the row at hand.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        *,
        seed: int,
        max_prompt_tokens: int | None = None,
        overlong: Overlong = "error",
        begins_conversations: bool = False,
    ) -> None:
        if not len(task.rows):
            raise TaskError(f"task {task.name!r} has no rows")
        self._task = task
        self._tokenizer = tokenizer
        self._seed = seed
        self._max_prompt_tokens = max_prompt_tokens
        self._cuts = overlong == "truncate_left"
        self._begins_conversations = begins_conversations
        self._cut: set[int] = set()
        self._tokens: dict[int, tuple[int, ...]] = {}
        self._longest = 0
        self._orders: dict[int, list[int]] = {}
        self._lock = threading.Lock()  # makers call concurrently; fast tokenizers are not thread-safe
        if overlong == "drop" and max_prompt_tokens is not None:
            kept = leave_out_overlong(task.rows, self._tokenise, f"task {task.name!r}")
            self._task = replace(task, rows=kept)

    @property
    def task(self) -> Task:
        """What the prompts are from, without rows that were left out."""
        return self._task

    def __getitem__(self, ordinal: int) -> Prompt:
        with self._lock:
            index = self._row_at(ordinal)
            tokens = () if self._begins_conversations else self._kept_tokens(index)
        row = self._task.rows[index]
        return Prompt(ordinal, tokens, row.prompt, row.columns)

    def tokens(self, ordinal: int) -> tuple[int, ...]:
        """The row's own prompt as tokens, whatever becomes of it."""
        with self._lock:
            return self._kept_tokens(self._row_at(ordinal))

    def messages(self, ordinal: int) -> Messages | None:
        """The conversation that the chat template was given for this prompt; None if the prompt is text."""
        with self._lock:
            row = self._task.rows[self._row_at(ordinal)]
        given = row.messages if isinstance(row, ChatRow) else row.prompt
        return None if isinstance(given, str) else given

    def _row_at(self, ordinal: int) -> int:
        """Which row stands there in the order of its pass."""
        if ordinal < 0:
            raise IndexError(f"ordinals count from 0, not from {ordinal}")
        pass_number, place = divmod(ordinal, len(self._task.rows))
        if pass_number not in self._orders:
            if len(self._orders) == KEPT_PASSES:
                del self._orders[next(iter(self._orders))]  # the oldest
            self._orders[pass_number] = _permutation(len(self._task.rows), self._seed, pass_number)
        return self._orders[pass_number][place]

    def row_tokens(self, index: int) -> tuple[int, ...]:
        """The prompt tokens of the task's row at this index."""
        with self._lock:
            return self._kept_tokens(index)

    def check(self) -> None:
        """Tokenise every row, so that an unusable prompt is refused before the run and not during it.

        This takes a fraction of a millisecond per row. The tokens of the first `KEPT_ROWS` rows are kept; others are
        computed again when they are needed.
        """
        with self._lock:
            for index in range(len(self._task.rows)):
                if index < KEPT_ROWS:
                    self._kept_tokens(index)
                else:
                    self._tokenise(index)
            say_cut(len(self._cut), len(self._task.rows), f"task {self._task.name!r}")

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt seen so far."""
        with self._lock:
            return self._longest

    def _kept_tokens(self, index: int) -> tuple[int, ...]:
        if index not in self._tokens:
            self._tokens[index] = self._tokenise(index)
        return self._tokens[index]

    def _tokenise(self, index: int) -> tuple[int, ...]:
        row, where = self._task.rows[index], f"task {self._task.name!r}, row {index}"
        values = NO_VALUES if self._begins_conversations else row_values(row)
        tokens = tokenise(row, self._tokenizer, values=values, where=where)
        most = self._max_prompt_tokens
        if most is not None and len(tokens) > most:
            if not self._cuts:
                raise OverlongError(
                    f"task {self._task.name!r}, row {index}: the prompt has {len(tokens)} tokens, more than the {most} "
                    "that the model's context leaves beside sampling.max_new_tokens: shorten it, or leave it out "
                    "(task.overlong: drop leaves out all such rows, truncate_left cuts their beginnings)"
                )
            tokens = cut_prompt(tokens, most, self._tokenizer)
            self._cut.add(index)
        self._longest = max(self._longest, len(tokens))
        return tokens


def tokenise(
    row: TaskRow, tokenizer: PreTrainedTokenizerBase, *, values: Mapping[str, Any] = NO_VALUES, where: str
) -> tuple[int, ...]:
    """The tokens of a row's prompt, ready for generation: text is tokenised, messages go through the chat template,
    which is given `values` besides.

    An end token that the tokenizer adds after every text is removed. If the last message is the assistant's it is
    continued, otherwise a message of the assistant begins.
    """
    prompt = row.messages if isinstance(row, ChatRow) else row.prompt
    if isinstance(prompt, str):
        tokens = text_tokens(prompt, tokenizer)
    else:
        tokens = template_tokens(prompt, tokenizer, {**template_options(prompt), **values}, where=where)
    if not tokens:
        raise TaskError(f"{where}: the prompt {row.prompt!r:.40} has no tokens")
    return tokens


def text_tokens(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens of a text to be continued: with the special tokens before it, without those after it.

    A beginning-of-sequence token that the text also contains, as chat templates write it, is not doubled.
    """
    encoded = tokenizer(text, return_special_tokens_mask=True)
    tokens, added = encoded["input_ids"], encoded["special_tokens_mask"]
    end = len(tokens)
    while end and added[end - 1]:  # added by the tokenizer; one contained in the text is not marked
        end -= 1
    begin = int(end > 1 and added[0] == 1 and added[1] == 0 and tokens[0] == tokens[1])
    return tuple(map(int, tokens[begin:end]))


def template_values(columns: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """What data gives its chat template besides messages, in columns that are called as TRL calls them: `tools`, the
    schemas of functions, as a list or as JSON, and `chat_template_kwargs`."""
    tools, more = columns.get("tools"), columns.get("chat_template_kwargs")
    if not tools and not more:
        return NO_VALUES
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except json.JSONDecodeError as error:
            raise TaskError(f"{where}: the column tools is text and not JSON ({error.msg})") from None
    if tools and not (isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools)):
        raise TaskError(
            f"{where}: tools is a list of the schemas of functions, or such a list as JSON, not {tools!r:.60}"
        )
    if more and not isinstance(more, Mapping):
        raise TaskError(f"{where}: chat_template_kwargs is a mapping of values for the chat template, not {more!r:.60}")
    return {**({"tools": tools} if tools else {}), **(more or {})}


def row_values(row: TaskRow) -> Mapping[str, Any]:
    """The same for a row to generate from. There such a column may hold something else, for rewards: then nothing."""
    if isinstance(row.prompt, str):
        return NO_VALUES
    try:
        return template_values(row.columns, "")
    except TaskError:
        return NO_VALUES


def template_options(messages: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Options of a chat template to continue the assistant's last message, or to begin one."""
    is_continued = messages[-1].get("role") == "assistant"
    return {"continue_final_message": True} if is_continued else {"add_generation_prompt": True}


def template_tokens(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    options: Mapping[str, Any],
    *,
    where: str,
    what: str = "messages",
) -> tuple[int, ...]:
    """Messages as tokens, through the tokenizer's chat template; `what` names them in error messages."""
    encoded = _apply_template(messages, tokenizer, where, what, return_dict=True, **options)
    return tuple(map(int, encoded["input_ids"]))


def template_text(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    options: Mapping[str, Any],
    *,
    where: str,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Messages as text, through the tokenizer's chat template, which is told of the tools that there are."""
    more = {"tools": [dict(tool) for tool in tools]} if tools else {}
    return str(_apply_template(messages, tokenizer, where, "messages", tokenize=False, **options, **more))


def _apply_template(
    messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, where: str, what: str, **options: Any
) -> Any:
    if not getattr(tokenizer, "chat_template", None):
        raise TaskError(
            f"{where}: the prompt is chat messages, but this tokenizer has no chat template: use the tokenizer of a "
            f"chat model, give task.chat_template (in Python, set tokenizer.chat_template), or give the prompts as text"
        )
    try:
        messages = _supported_messages(messages, tokenizer, where)
        return tokenizer.apply_chat_template(list(messages), **options)  # type: ignore[arg-type, unused-ignore]
    except TaskError:
        raise
    except Exception as error:  # a template is a program and may raise anything
        raise TaskError(f"{where}: the tokenizer's chat template refuses the {what}: {error}") from error


def _supported_messages(
    messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, where: str
) -> Sequence[Mapping[str, Any]]:
    """The messages, changed where the template would write Python values: content in parts becomes text, and content
    None, as in tool calls, becomes empty."""
    messages = _without_none(messages, tokenizer, where)
    in_parts = [place for place, one in enumerate(messages) if isinstance(one.get("content"), list | tuple)]
    if not in_parts or _supports_parts(messages, tokenizer):
        return messages
    for place in in_parts:
        if not all(isinstance(part, Mapping) and "text" in part for part in messages[place]["content"]):
            raise TaskError(
                f"{where}: the content of message {place} is a list of parts, which the tokenizer's chat template does "
                "not support, and not all of them are text: give its content as text, or set tokenizer.chat_template"
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
    given, empty = _render(messages, tokenizer), _render(emptied, tokenizer)
    if empty is None or (given is not None and given.count("None") <= empty.count("None")):
        return messages
    for place in silent:
        for call in messages[place].get("tool_calls") or ():
            name = call.get("function", call).get("name") if isinstance(call, Mapping) else None
            if name is not None and str(name) not in empty:
                raise TaskError(
                    f"{where}: message {place} calls the tool {name!r}, but the tokenizer's chat template does "
                    "not write tool calls: set tokenizer.chat_template to one that does, or leave the row out"
                )
    return emptied


def _render(messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Messages as text through the template; None if it refuses them."""
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False))  # type: ignore[arg-type, unused-ignore]
    except Exception:  # a template that concatenates text cannot do so with a list
        return None


def _supports_parts(messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase) -> bool:
    text = _render(messages, tokenizer)
    if text is None:
        return False
    parts = [part for one in messages if isinstance(one.get("content"), list | tuple) for part in one["content"]]
    return not any(str(part) in text for part in parts if isinstance(part, Mapping))


def _permutation(count: int, seed: int, pass_number: int) -> list[int]:
    import torch  # slow to import

    digest = hashlib.blake2b(f"{seed}/pass/{pass_number}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)  # torch takes 63 bits
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return order
