"""Preference pairs: two completions of one prompt, one of them preferred."""

from __future__ import annotations

import logging
import math
import numbers
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, cast

from ..data.messages import Messages, is_conversation
from ..spelling import did_you_mean, nearest
from .builtin import builtin_task
from .completions import Tokens, check_fits, completion_tokens
from .formats import PAIRS, Columns, rename
from .overlong import Overlong, cut_prompt
from .prompts import NO_VALUES, template_values
from .sources import FILES, find_source, is_named_data, read_table
from .task import TaskError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("proa.tasks")


class EqualSidesError(TaskError):
    """Both sides of a pair are the same."""


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
    is_cut: bool = False
    """Whether the prompt lost its first tokens."""


def load_preferences(source: Any, *, columns: Columns | None = None, split: str | None = None) -> list[PreferencePair]:
    """The pairs in `source`, with columns `prompt`, `chosen`, `rejected` and perhaps `margin`.

    A list of dicts, the path of a file, a Hugging Face dataset, the folder of a saved one, `hf:NAME?split=train` for
    one of the Hub, or `package.module:name` of any of these or of a function that returns one. A prompt is text or chat
    messages; a side is text, or the assistant's message in a list. Sides that begin alike, as texts or as whole
    conversations, need no prompt. Pairs of equal sides are left out. `columns` renames columns, `{"chosen": "better"}`;
    `split` chooses from several datasets.

    >>> load_preferences([{"prompt": "2+2=", "chosen": "4", "rejected": "5"}])[0].chosen
    '4'
    >>> load_preferences([{"chosen": "The sky is blue.", "rejected": "The sky is green."}])[0].prompt
    'The sky is'
    """
    if isinstance(source, str) and not is_named_data(source):
        return load_preferences(find_source(source), columns=columns, split=split)
    table = read_table(source, split)
    if table is None:
        raise TaskError(
            f"{source!r:.80} does not hold preferences: give a list of dicts, a dataset, a file ({', '.join(FILES)}), "
            "or 'package.module:name'"
        )
    named = columns or {}
    rows = [rename(row, named, f"{table.origin}, row {index}") for index, row in enumerate(table.rows)]
    pairs = _pairs(rows, table.origin)
    if isinstance(rows[0], Mapping):
        log.info(
            "data: %s pair%s of %s, from %s", f"{len(pairs):,}", "s" * (len(pairs) > 1), PAIRS[0].describe(rows[0]),
            table.origin,
        )  # fmt: skip
    return pairs


def builtin_pairs(name: str, split: str = "train", count: int | None = None, seed: int = 0) -> list[PreferencePair]:
    """The answers of a built-in task, each preferred to a wrong one: every digit of it is one more.

    >>> builtin_pairs("sort_digits", count=1)
    [PreferencePair(prompt='084460>', chosen='004468', rejected='115579', margin=None, columns={})]
    """
    pairs = []
    for index, row in enumerate(builtin_task(name, split, count, seed).rows):
        answer = str(row.columns["answer"])
        sides = {"prompt": row.prompt, "chosen": answer, "rejected": answer.translate(_ONE_MORE)}
        pairs.append(_pair(sides, f"task {name!r}, row {index}"))
    return pairs


_ONE_MORE = str.maketrans("0123456789", "1234567890")


def tokenise_pair(
    pair: PreferencePair,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    overlong: Overlong = "error",
    where: str,
) -> TokenisedPair:
    """A pair as tokens; one whose longer side does not fit in `max_length` is refused, or its prompt cut."""
    values = NO_VALUES if isinstance(pair.prompt, str) else template_values(pair.columns, where)
    prompt, chosen = completion_tokens(pair.prompt, pair.chosen, tokenizer, values=values, where=where)
    _, rejected = completion_tokens(pair.prompt, pair.rejected, tokenizer, values=values, where=where)
    if chosen == rejected:
        raise TaskError(f"{where}: chosen and rejected are the same tokens: leave the row out")
    is_cut = False
    if overlong == "truncate_left" and max_length is not None:
        whole, room = prompt, max_length - max(len(chosen), len(rejected))
        prompt = cut_prompt(prompt, room, tokenizer) if room > 0 else prompt
        is_cut = prompt != whole
    check_fits(len(prompt), len(chosen), max_length, where=where, what="chosen completion")
    check_fits(len(prompt), len(rejected), max_length, where=where, what="rejected completion")
    return TokenisedPair(prompt, chosen, rejected, pair.margin or 0.0, is_cut)


def _pairs(rows: Iterable[Any], origin: str) -> list[PreferencePair]:
    """Those whose sides differ. How many do not is said: large datasets have some."""
    pairs: list[PreferencePair] = []
    equal: list[EqualSidesError] = []
    for index, row in enumerate(rows):
        try:
            pairs.append(_pair(row, f"{origin}, row {index}"))
        except EqualSidesError as error:
            equal.append(error)
    if not pairs:
        raise equal[0] if equal else TaskError(f"{origin} is empty: give at least one pair")
    if equal:
        count, whole = f"{len(equal):,}", f"{len(equal) + len(pairs):,}"
        log.info("%s of %s pairs have two equal sides and are left out; the first: %s", count, whole, equal[0])
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
        raise EqualSidesError(f"{where}: chosen and rejected are the same, from which nothing can be learned")
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


def _column(row: Mapping[Any, Any], name: str, where: str) -> Any:
    if name not in row:
        if {"completion", "label"} <= row.keys():
            raise TaskError(
                f"{where} is an unpaired preference (completion and label), which no algorithm here learns from: give "
                "a chosen and a rejected completion of each prompt, or learn the good ones with sft"
            )
        names = [str(column) for column in row]
        raise TaskError(
            f"{where} has no column {name!r}{did_you_mean(name, names)} (it has: {', '.join(names) or 'none'}); name "
            f"yours under task, e.g. columns: {{{name}: NAME}}"
        )
    return row[name]


def _one_form(
    row: Mapping[Any, Any], chosen: str | Messages, rejected: str | Messages, where: str
) -> tuple[str | Messages, str | Messages, str | Messages]:
    """Prompt and sides, all text or all messages, each side without the prompt."""
    if isinstance(chosen, list) and isinstance(rejected, list):
        prompt = _prompt(row, where) if row.get("prompt") is not None else None
        return _split_prompt(prompt, chosen, rejected, where)
    assert isinstance(chosen, str)
    assert isinstance(rejected, str), "both are text, or both messages"
    if row.get("prompt") is None:
        if nearest("prompt", map(str, row)):  # a misspelt prompt must not be left out silently
            _column(row, "prompt", where)
        return _split_text(chosen, rejected, where)
    prompt = _prompt(row, where)
    if isinstance(prompt, str):
        return prompt, chosen, rejected
    return prompt, [{"role": "assistant", "content": chosen}], [{"role": "assistant", "content": rejected}]


def _split_text(chosen: str, rejected: str, where: str) -> tuple[str, str, str]:
    """Separate two texts from the prompt that both begin with: before the blank before the first word that differs, so
    that words stay whole; where there is no blank, before the first character that differs.

    Where exactly does not change what is learned: what the sides still share is as likely in both.
    """
    shared = commonprefix((chosen, rejected))
    blank = re.search(r"\s+\S*$", shared)
    prompt = shared[: blank.start()] if blank is not None and blank.start() else shared
    if not prompt:
        raise TaskError(
            f"{where}: chosen and rejected do not begin with the same text, and there is no prompt: give a column "
            "prompt, or name yours under task, e.g. columns: {prompt: NAME}"
        )
    return prompt, chosen[len(prompt) :], rejected[len(prompt) :]


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


def _prompt(row: Mapping[Any, Any], where: str) -> str | Messages:
    prompt = row["prompt"]
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
