"""Preference pairs: two completions of one prompt, one of them preferred."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..data.messages import Messages, is_conversation
from ..spelling import did_you_mean
from .completions import Tokens, check_fits, completion_tokens
from .sources import check_dataset, find_source, is_file_name, read_jsonl
from .task import TaskError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """A prompt and two completions of it: all text, or all chat messages (each side one message of the assistant).

    A `margin` says by how much the reward of the chosen side should be ahead.
    """

    prompt: str | Messages
    chosen: str | Messages
    rejected: str | Messages
    margin: float | None = None
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenisedPair:
    """A pair as tokens; both completions end with the end token."""

    prompt: Tokens
    chosen: Tokens
    rejected: Tokens
    margin: float = 0.0


def load_preferences(source: Any) -> list[PreferencePair]:
    """The pairs in `source`, with columns `prompt`, `chosen`, `rejected` and perhaps `margin`.

    A list of dicts, the path of a JSONL file, a Hugging Face dataset, or `package.module:name` of any of these or
    of a function that returns one. A prompt is text or chat messages; a side is text, or the assistant's message
    in a list. Sides that are whole conversations with a common prefix need no prompt.

    >>> load_preferences([{"prompt": "2+2=", "chosen": "4", "rejected": "5"}])[0].chosen
    '4'
    """
    if isinstance(source, Path) or (isinstance(source, str) and is_file_name(source)):
        return _pairs(read_jsonl(Path(source)), str(source))
    if isinstance(source, str):
        return load_preferences(find_source(source))
    if hasattr(source, "column_names"):
        check_dataset(source)
        return _pairs((dict(row) for row in source), "the dataset")
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        return _pairs(source, "the list")
    raise TaskError(
        f"{source!r:.80} does not hold preferences: give a list of dicts, the path of a JSONL file, a dataset, "
        "or 'package.module:name'"
    )


def tokenise_pair(
    pair: PreferencePair, tokenizer: PreTrainedTokenizerBase, *, max_length: int | None = None, where: str
) -> TokenisedPair:
    """A pair as tokens; one whose longer side does not fit in `max_length` is refused, not cut."""
    prompt, chosen = completion_tokens(pair.prompt, pair.chosen, tokenizer, where=where)
    _, rejected = completion_tokens(pair.prompt, pair.rejected, tokenizer, where=where)
    if chosen == rejected:
        raise TaskError(f"{where}: chosen and rejected are the same tokens, which says nothing: leave the row out")
    check_fits(len(prompt), len(chosen), max_length, where=where, what="chosen completion")
    check_fits(len(prompt), len(rejected), max_length, where=where, what="rejected completion")
    return TokenisedPair(prompt, chosen, rejected, pair.margin or 0.0)


def _pairs(rows: Iterable[Any], origin: str) -> list[PreferencePair]:
    pairs = [_pair(row, f"{origin}, row {index}") for index, row in enumerate(rows)]
    if not pairs:
        raise TaskError(f"{origin} is empty: give at least one pair")
    return pairs


def _pair(row: Any, where: str) -> PreferencePair:
    if isinstance(row, PreferencePair):
        return row
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: a row is a dict like {{'prompt': …, 'chosen': …, 'rejected': …}}, not {row!r:.60}")
    chosen, rejected = (_side(row, name, where) for name in ("chosen", "rejected"))
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise TaskError(f"{where}: one side is text and the other messages; give both in one form")
    if chosen == rejected:
        raise TaskError(f"{where}: chosen and rejected are the same, which says nothing: leave the row out")
    prompt, chosen, rejected = _one_form(row, chosen, rejected, where)
    _check_nonempty(chosen, "chosen", where)
    _check_nonempty(rejected, "rejected", where)
    names = ("prompt", "chosen", "rejected", "margin")
    columns = {str(name): value for name, value in row.items() if name not in names}
    return PreferencePair(prompt, chosen, rejected, _margin(row.get("margin"), where), columns)


def _side(row: Mapping[Any, Any], name: str, where: str) -> str | Messages:
    value = _column(row, name, where)
    if value is None or (isinstance(value, str | list) and not value):
        _check_nonempty("", name, where)
    if isinstance(value, str) or is_conversation(value):
        return cast("str | Messages", value)
    raise TaskError(
        f"{where}: {name} is some text, or a list with the assistant's message, "
        f"[{{'role': 'assistant', 'content': …}}], not {value!r:.60}"
    )


def _column(row: Mapping[Any, Any], name: str, where: str, more: str = "") -> Any:
    if name not in row:
        names = [str(column) for column in row]
        raise TaskError(
            f"{where} has no column {name!r}{did_you_mean(name, names)} (it has: {', '.join(names) or 'none'}){more}"
        )
    return row[name]


def _one_form(
    row: Mapping[Any, Any], chosen: str | Messages, rejected: str | Messages, where: str
) -> tuple[str | Messages, str | Messages, str | Messages]:
    """Prompt and sides, all text or all messages, each side without the prompt."""
    if isinstance(chosen, list) and isinstance(rejected, list):
        prompt = _prompt(row, where) if row.get("prompt") is not None else None
        return _split_prompt(prompt, chosen, rejected, where)
    prompt = _prompt(row, where, "; only sides that are whole conversations, as messages, can go without")
    if isinstance(prompt, str):
        return prompt, chosen, rejected
    return prompt, [{"role": "assistant", "content": chosen}], [{"role": "assistant", "content": rejected}]


def _split_prompt(
    prompt: str | Messages | None, chosen: Messages, rejected: Messages, where: str
) -> tuple[Messages, Messages, Messages]:
    """Separate sides given as messages from the prompt, which they may repeat or alone contain."""
    if isinstance(prompt, list):
        repeated = chosen[: len(prompt)] == prompt == rejected[: len(prompt)]
        beginning = len(prompt) if repeated else 0
    else:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))
        shared = [message for message, _ in same]
        _check_shared_prompt(prompt, shared, where)
        if shared[-1]["role"] == "assistant":
            raise TaskError(
                f"{where}: both sides begin with the assistant's message and continue with another: give the prompt as "
                "messages; if it ends with a message of the assistant, the sides continue that message"
            )
        prompt, beginning = shared, len(shared)
    chosen, rejected = chosen[beginning:], rejected[beginning:]
    for name, side in (("chosen", chosen), ("rejected", rejected)):
        if len(side) != 1 or side[0]["role"] != "assistant":
            roles = ", ".join(str(message["role"]) for message in side) or "nothing"
            raise TaskError(
                f"{where}: after the prompt, {name} must be one message of the assistant, and is {roles}: "
                "what both sides share belongs to the prompt"
            )
    return prompt, chosen, rejected


def _check_shared_prompt(prompt: str | None, shared: Messages, where: str) -> None:
    if not shared:
        raise TaskError(
            f"{where}: chosen and rejected do not begin with the same messages, and there is no prompt as messages: "
            "give the prompt as [{'role': 'user', 'content': …}]"
        )
    if prompt is not None and all(message.get("content") != prompt for message in shared):
        raise TaskError(f"{where}: the prompt, {prompt!r:.40}, is not among the messages that both sides begin with")


def _prompt(row: Mapping[Any, Any], where: str, more: str = "") -> str | Messages:
    prompt = _column(row, "prompt", where, more)
    if (isinstance(prompt, str) and prompt) or is_conversation(prompt):
        return cast("str | Messages", prompt)
    raise TaskError(
        f"{where}: a prompt is some text, or chat messages like [{{'role': 'user', 'content': 'Hello'}}], "
        f"not {prompt!r:.60}"
    )


def _check_nonempty(side: str | Messages, name: str, where: str) -> None:
    text = side if isinstance(side, str) else side[0].get("content")
    if (text is None or not str(text).strip()) and not (isinstance(side, list) and side[0].get("tool_calls")):
        raise TaskError(f"{where}: the {name} side is empty: fill it in, or leave the row out")


def _margin(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise TaskError(f"{where}: a margin is a number, not {value!r:.40}; leave the column out if there is none")
    return float(value)
