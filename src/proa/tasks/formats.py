"""The forms in which people have data, recognised by the exact names of columns.

Rows of every form are rewritten as those that the rest of the package reads: `prompt` with `completion`, `prompt` as a
whole conversation, or `chosen` and `rejected`. No text is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..data.messages import is_conversation
from ..spelling import did_you_mean
from .task import TaskError, TaskRow

Columns: TypeAlias = Mapping[str, str]
"""The name that a column should have, and the name that it has in the data: `{"prompt": "question"}`."""


@dataclass(frozen=True)
class Format:
    """Columns that together are a known form of data."""

    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def rewrite(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any] | TaskRow:
        """The row as the rest of the package reads it."""
        return row

    def describe(self, row: Mapping[str, Any]) -> str:
        """The columns that are read, and in which form, e.g. `prompt + completion (messages)`."""
        present = [*self.columns, *(name for name in self.optional if row.get(name) is not None)]
        present.sort(key=lambda name: name != "prompt")  # stable
        form = "messages" if any(isinstance(row.get(name), list) for name in present) else "text"
        return f"{' + '.join(present)} ({form})"


class Answers(Format):
    """Prompts, each with what is to be learned after it."""

    def rewrite(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        return {**_others(row, *self.columns), **{name: row[name] for name in self.columns}}


class Conversations(Format):
    """Whole conversations in one column: messages, or ShareGPT's turns with `from` and `value`."""

    def rewrite(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        (column,) = self.columns
        turns = row[column]
        messages = turns if is_conversation(turns) else _messages(turns, column, where)
        return {**_others(row, column), "prompt": messages}


class Texts(Format):
    """Texts to learn whole: a completion without a prompt."""

    def rewrite(self, row: Mapping[str, Any], where: str) -> TaskRow:
        text = row["text"]
        if not isinstance(text, str) or not text:
            raise TaskError(f"{where}: text is some text to learn, not {text!r:.60}")
        return TaskRow("", {**_others(row, "text"), "completion": text})


class Instructions(Format):
    """Alpaca's instructions, with or without an input: a message of the user.

    What separates it from the answer is up to the chat template: Alpaca's own words are not part of the data.
    """

    def rewrite(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        others = {name: value for name, value in row.items() if name not in ("instruction", "input")}
        return {**others, "prompt": self.messages(row, where)}

    def messages(self, row: Mapping[str, Any], where: str) -> list[dict[str, str]]:
        for name in ("instruction", "input"):
            if not isinstance(row.get(name) or "", str):
                raise TaskError(f"{where}: {name} is some text, not {row[name]!r:.60}")
        asked = "\n".join(filter(None, (row["instruction"], row.get("input"))))
        return [{"role": "user", "content": asked}] if asked else []


class AnsweredInstructions(Instructions):
    """Alpaca's instructions with the assistant's answers."""

    def rewrite(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        others = _others(row, *self.columns, *self.optional)
        return {**others, "prompt": self.messages(row, where), "completion": row["output"]}


def _others(row: Mapping[str, Any], *read: str) -> dict[str, Any]:
    """The columns that are not read. Another one with prompts or answers is left out: it would be taken for them."""
    return {str(name): value for name, value in row.items() if name not in {*read, "prompt", "completion", "answer"}}


PROMPTS = (Format(("prompt",)), Instructions(("instruction",), ("input",)))
"""To generate from."""
PAIRS = (Format(("chosen", "rejected"), ("prompt",)),)
"""Two completions of a prompt, one of them preferred."""


def examples(answer_column: str) -> tuple[Format, ...]:
    """To learn from; a column of answers that was chosen is the only one that is looked for."""
    answers = Answers(("prompt", answer_column))
    if answer_column != "answer":
        return (answers,)
    return (
        Answers(("prompt", "completion")),
        answers,
        Conversations(("messages",)),
        Texts(("text",)),
        AnsweredInstructions(("instruction", "output"), ("input",)),
        Conversations(("conversations",)),
    )


def rename(row: Any, columns: Columns, where: str) -> Any:
    """The row with its columns renamed; another column that had such a name is not read."""
    if not columns or not isinstance(row, Mapping):
        return row
    for what, name in columns.items():
        if name not in row:
            names = [str(one) for one in row]
            raise TaskError(
                f"{where} has no column {name!r}{did_you_mean(name, names)}, which columns names as {what!r} (it has: "
                f"{', '.join(names) or 'none'})"
            )
    others = {name: value for name, value in row.items() if name not in columns.values() and name not in columns}
    return {**{name: row[column] for name, column in columns.items()}, **others}


def recognise(row: Mapping[str, Any], formats: Sequence[Format], columns: Columns, origin: str) -> Format | None:
    """The one of `formats` that has its columns in this row, which is already renamed; None if none has.

    It must read all the known columns that the user named; where several do, none is guessed.
    """
    named = set(columns) & {name for one in formats for name in (*one.columns, *one.optional)}
    fitting = [one for one in formats if set(one.columns) <= row.keys() and named <= {*one.columns, *one.optional}]
    if len(fitting) > 1:
        known = [" + ".join(one.columns) for one in fitting]
        lines = [_line_for(one, fitting) for one in fitting]
        raise TaskError(
            f"{origin} could be read as {' or as '.join(known)}: choose with one line under task: {' or '.join(lines)}"
        )
    return fitting[0] if fitting else None


def advice(row: Mapping[str, Any], formats: Sequence[Format], origin: str) -> str:
    """What to write where no format was recognised."""
    names = [str(name) for name in row]
    known = "; ".join(" + ".join(one.columns) for one in formats)
    nearest = max(formats, key=lambda one: sum(name in row for name in one.columns))  # the first, where none is near
    missing = [name for name in nearest.columns if name not in row]
    typos = "".join(did_you_mean(name, names) for name in missing)
    places = ", ".join(f"{name}: {_likely(name, names)}" for name in missing)
    return (
        f"{origin} has no columns that are known{typos} (it has: {', '.join(names) or 'none'}; known: {known}); "
        f"name yours under task, e.g. columns: {{{places}}}"
    )


def _likely(wanted: str, names: Sequence[str]) -> str:
    """The column that probably is what was not found, by a name that others give it."""
    return next((name for name in _OFTEN_CALLED.get(wanted, ()) if name in names), "NAME")


_OFTEN_CALLED = {
    "prompt": ("question", "query", "problem", "input", "instruction", "text"),
    "completion": ("output", "response", "solution", "target", "answer"),
    "instruction": ("input", "question", "query", "problem", "prompt"),
    "output": ("response", "answer", "completion", "solution", "target"),
    "chosen": ("better", "preferred", "response_chosen", "accepted"),
    "rejected": ("worse", "dispreferred", "response_rejected"),
}


def _line_for(one: Format, fitting: Sequence[Format]) -> str:
    """The line that leaves this format alone."""
    others = {name for other in fitting if other is not one for name in other.columns}
    names = [name for name in one.columns if name not in others] or list(one.columns)
    return f"columns: {{{', '.join(f'{name}: {name}' for name in names)}}}"


_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system",
    "tool": "tool", "observation": "tool", "function_response": "tool",
}  # fmt: skip
"""Who speaks in ShareGPT's turns, as roles of chat messages."""


def _messages(turns: Any, column: str, where: str) -> list[dict[str, Any]]:
    is_turns = isinstance(turns, list) and all(
        isinstance(turn, Mapping) and isinstance(turn.get("value"), str) and "from" in turn for turn in turns
    )
    if not turns or not is_turns:
        raise TaskError(
            f"{where}: {column} is a list of messages like {{'role': 'user', 'content': 'Hello'}}, or of turns like "
            f"{{'from': 'human', 'value': 'Hello'}}, not {turns!r:.60}"
        )
    for turn in turns:
        if turn["from"] not in _ROLES:
            raise TaskError(f"{where}: a turn is from {turn['from']!r}, which is not one of {', '.join(_ROLES)}")
    return [{"role": _ROLES[turn["from"]], "content": turn["value"]} for turn in turns]
