"""Look up a word's number with a tool: the answer to `dab` is what `look_up(key="dab")` says, and nobody can know it.

The model has to learn from nothing to write a call, to copy the key into it, and to repeat what came back. Its
tokenizer has the pieces of a call as single tokens, so that a tiny model can.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any

from ..task import TaskRow
from .draw import draw_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LETTERS, DIGITS = "abcdefghijklmnop", "0123456789"
LENGTH = 3
"""Of a key."""
ROWS = 1_700
PAD, END = "<pad>", "<end>"
CALL, CLOSE = '<tool_call>{"name": "look_up", "arguments": {"key": "', '"}}</tool_call>'
VOCABULARY = (PAD, END, "<user>", "<assistant>", "<tool>", CALL, CLOSE, *LETTERS, *DIGITS)
"""Thirty-three entries; a token's id is its place."""
TEMPLATE = (
    "{% if tools %}<tool>{% endif %}{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "look_up", "arguments": {"key": "{{ call.function.arguments.key }}"}}</tool_call>'
    "{% endfor %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def look_up(key: str) -> str:
    """Look up the number of a word.

    Args:
        key: the word
    """
    return DIGITS[hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % len(DIGITS)]


def wrong_look_up(key: str) -> str:
    """Look up the number of a word. This book has the numbers of other words: with it nothing can be learned.

    Args:
        key: the word
    """
    return look_up(f"another word than {key}")


wrong_look_up.__name__ = "look_up"


def rows(split: str, count: int, seed: int = 0) -> list[TaskRow]:
    """Distinct keys of the split, each with its number."""
    return draw_rows(split, count, seed, prompts=len(LETTERS) ** LENGTH, row=_row)


def _row(stream: random.Random) -> TaskRow:
    key = "".join(stream.choices(LETTERS, k=LENGTH))
    return TaskRow([{"role": "user", "content": key}], {"key": key, "answer": look_up(key)})


def reward(completions: list[list[dict[str, Any]]], key: list[str], answer: list[str], **_columns: Any) -> list[float]:
    """1 for the right number after a look-up of the right key; before that, something for each step towards it."""
    return [_score(messages, one, right) for messages, one, right in zip(completions, key, answer, strict=True)]


def exact(completions: list[list[dict[str, Any]]], answer: list[str], **_columns: Any) -> list[float]:
    """1 where the model's last message is the number, 0 for any other."""
    return [float(_answers(messages, right)) for messages, right in zip(completions, answer, strict=True)]


def _score(messages: list[dict[str, Any]], key: str, answer: str) -> float:
    said = str(messages[0].get("content", "")) if messages else ""
    calls = messages[0].get("tool_calls") if messages else None
    if not calls or "error" in calls[0]:
        return 0.1 * said.startswith("<tool_call>") + (0.05 if calls else 0.0)
    given = str(calls[0]["function"]["arguments"].get("key", ""))
    copied = sum(a == b for a, b in zip(given, key, strict=False)) / max(len(given), len(key))
    return 0.2 + 0.3 * copied + 0.5 * _answers(messages[1:], answer)


def _answers(messages: list[dict[str, Any]], answer: str) -> bool:
    """Whether the model has the last word, and it is the answer: what a tool said last is not the model's."""
    return bool(messages) and messages[-1]["role"] == "assistant" and messages[-1]["content"] == answer


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each entry of the vocabulary; it decodes to the text that went in."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {token: place for place, token in enumerate(VOCABULARY)}
    pieces = Tokenizer(models.WordLevel(ids, unk_token=PAD))
    pieces.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    pieces.decoder = decoders.Fuse()
    pieces.add_special_tokens([AddedToken(token, special=True) for token in VOCABULARY[:5]])
    pieces.add_tokens([AddedToken(token, special=False, normalized=False) for token in (CALL, CLOSE)])
    made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=pieces,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TEMPLATE
    return made
