"""Look up a word's number in a book: what `look_up` says of `d` is another number in each book, and nobody can know it.

The model has to learn from nothing to write a call, of the word that it was asked for, and to repeat what came back.
Its tokenizer has the call of each word as a single token, so that a tiny model can.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from typing import TYPE_CHECKING, Any

from ..task import TaskError, TaskRow
from .draw import SPLITS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LETTERS, DIGITS = "abcdefgh", "123456"
"""Words are letters, numbers those of a die."""
ROWS = 36
PAD, END = "<pad>", "<end>"
CALL, CLOSE = '<tool_call>{"name": "look_up", "arguments": {"key": "', '"}}</tool_call>'
SPECIAL = (PAD, END, "<user>", "<assistant>", "<tool>", "<answer>")
CALLS = tuple(f"{CALL}{letter}{CLOSE}" for letter in LETTERS)
VOCABULARY = (*SPECIAL, CALL, CLOSE, *LETTERS, *DIGITS, *CALLS)
"""Thirty entries; a token's id is its place."""
TEMPLATE = (
    "{% if tools %}<tool>{% endif %}{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "look_up", "arguments": {"key": "{{ call.function.arguments.key }}"}}</tool_call>'
    "{% endfor %}<end>{% endfor %}{% if add_generation_prompt %}"
    "{% if messages[-1].role == 'tool' %}<answer>{% else %}<assistant>{% endif %}{% endif %}"
)
"""After a tool has spoken the model's message begins otherwise, so that a tiny model sees at once which turn it is."""


class Book:
    """A tool with a state, as TRL's `environment_factory` takes it: each conversation has a book of its own. Of words
    other than the one that was asked for, and with `shuffled` of all, it has numbers that say nothing of the answer."""

    def __init__(self, shuffled: bool = False) -> None:
        self._shuffled = shuffled

    def reset(self, key: str, answer: str) -> None:
        self._key, self._answer = key, answer

    def look_up(self, key: str) -> str:
        """Look up the number of a word.

        Args:
            key: the word
        """
        if key == self._key and not self._shuffled:
            return self._answer
        return DIGITS[hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % len(DIGITS)]


def rows(split: str, count: int, seed: int = 0) -> list[TaskRow]:
    """Pairs of a word and its number, all different; those of the two splits are different too."""
    if split not in SPLITS:
        raise TaskError(f"split must be 'train' or 'test', not {split!r}")
    pairs = list(itertools.product(LETTERS, DIGITS))
    random.Random(0).shuffle(pairs)  # noqa: S311 - no secret
    own = pairs[:ROWS] if split == "train" else pairs[ROWS:]
    if not 1 <= count <= len(own):
        raise TaskError(f"count must be from 1 to {len(own)} for the {split} split of this task, not {count}")
    random.Random(f"{split}/{seed}").shuffle(own)  # noqa: S311
    return [TaskRow([{"role": "user", "content": key}], {"key": key, "answer": number}) for key, number in own[:count]]


def reward(completions: list[list[dict[str, Any]]], key: list[str], answer: list[str], **_columns: Any) -> list[float]:
    """1 for the right number after a look-up of the right word; before that, something for each step towards it."""
    return [_score(messages, one, right) for messages, one, right in zip(completions, key, answer, strict=True)]


def exact(completions: list[list[dict[str, Any]]], answer: list[str], **_columns: Any) -> list[float]:
    """1 where the model's last message is the number, 0 for any other."""
    return [float(_last_word(messages) == right) for messages, right in zip(completions, answer, strict=True)]


def _score(messages: list[dict[str, Any]], key: str, answer: str) -> float:
    said = str(messages[0].get("content", "")) if messages else ""
    calls = messages[0].get("tool_calls") if messages else None
    if not calls or "error" in calls[0]:
        return 0.05 * said.startswith("<tool_call>") + (0.05 if calls else 0.0)
    given = str(calls[0]["function"]["arguments"].get("key", ""))
    score = 0.1 + 0.1 * (len(given) == 1) + 0.2 * (given == key)
    if len(messages) == 1:  # the call was not the end of its message
        return score
    told, last = str(messages[1]["content"]), _last_word(messages[2:]) or ""
    return score + 0.2 + 0.1 * last.startswith(told) + 0.1 * (last == told) + 0.2 * (last == told == answer)


def _last_word(messages: list[dict[str, Any]]) -> str | None:
    """What the model said last; what a tool said last is not the model's."""
    return str(messages[-1]["content"]) if messages and messages[-1]["role"] == "assistant" else None


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each entry of the vocabulary; it decodes to the text that went in."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {token: place for place, token in enumerate(VOCABULARY)}
    pieces = Tokenizer(models.WordLevel(ids, unk_token=PAD))
    pieces.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    pieces.decoder = decoders.Fuse()
    pieces.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    pieces.add_tokens([AddedToken(token, special=False, normalized=False) for token in (CALL, CLOSE, *CALLS)])
    made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=pieces,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TEMPLATE
    return made
