"""What environments and tools answer as text and messages that a model can read, whatever they are made of."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

MOST_CHARACTERS = 65_536
"""Of one answer, for the model; the rest is cut off, with a note."""


def as_text(value: Any) -> str:
    """A result as a model reads it: text as it is, all else as JSON; bytes that are no text with replacement marks.

    >>> as_text({"a": 1}), as_text(b"ok \\xff"), as_text("x" * 70_000)[65_535:]
    ('{"a": 1}', 'ok �', 'x [4,464 more characters are cut off]')
    """
    if isinstance(value, bytes | bytearray | memoryview):
        text = bytes(value[: 4 * MOST_CHARACTERS]).decode("utf-8", "replace")
    elif isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            text = _str(value)
    return shortened(without_surrogates(text))


def _str(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:  # a user's __str__ may raise anything
        return f"a {type(value).__name__}, whose text cannot be had: {type(error).__name__}: {error}"


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[:most]} [{len(text) - most:,} more characters are cut off]"


def without_surrogates(text: str) -> str:
    """Lone halves of surrogate pairs have no bytes, and tokenizers raise on them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def plain(value: Any) -> Any:
    """A value as JSON has it: what is no JSON becomes its text.

    >>> plain({"at": complex(1, 2), 3: ("a", b"\\xff"), "far": math.inf})
    {'at': '(1+2j)', '3': ['a', '�'], 'far': 'Infinity'}
    """
    if isinstance(value, str):
        return without_surrogates(value)
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {without_surrogates(str(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return as_text(value)


def prompt_messages(prompt: Any) -> list[dict[str, Any]]:
    """A prompt as messages; text is the user's, and where there is none the user says nothing.

    >>> prompt_messages("2+2?"), prompt_messages(None)
    ([{'role': 'user', 'content': '2+2?'}], [{'role': 'user', 'content': ''}])
    """
    if prompt is None or isinstance(prompt, str):
        return [{"role": "user", "content": prompt or ""}]
    return [dict(one) for one in prompt]


def with_observation(messages: Sequence[Mapping[str, Any]], text: str, between: str = "\n\n") -> list[dict[str, Any]]:
    """Messages with a text at the end of the last, if that is the user's; otherwise as a message of the user.

    >>> with_observation([{"role": "user", "content": "Play."}], "A door.")
    [{'role': 'user', 'content': 'Play.\\n\\nA door.'}]
    """
    *before, last = [dict(one) for one in messages] or [{"role": "user", "content": ""}]
    if last["role"] != "user":
        return [*before, last, {"role": "user", "content": text}]
    content = last.get("content") or ""
    if isinstance(content, str):
        return [*before, last | {"content": content + between + text if content else text}]
    return [*before, last | {"content": [*content, {"type": "text", "text": text}]}]


def said(message: Mapping[str, Any]) -> str:
    """The text of a message."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)


def raised(error: BaseException) -> str:
    """An exception in a line: what it says, and where in the user's code it was raised."""
    try:
        message = "".join(traceback.format_exception_only(error)).strip()
    except Exception:  # its __str__ may raise anything
        message = type(error).__name__
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "/proa/environments/" not in frame.filename
    ]
    if frames:
        message += f" ({frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno})"
    return shortened(without_surrogates(message), 2000)


def described(value: object) -> str:
    """A value of the user's in an error message."""
    try:
        text = without_surrogates(repr(value))
    except Exception:  # a user's __repr__ may raise anything
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
