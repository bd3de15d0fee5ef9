"""Chat messages: recognising them, and a conversation as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Messages: TypeAlias = list[dict[str, Any]]


def is_conversation(value: object) -> bool:
    """Whether something is a list of chat messages."""
    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def is_message(value: object) -> bool:
    """Whether something is a chat message: it has a role, and content or tool calls."""
    return isinstance(value, Mapping) and "role" in value and ("content" in value or "tool_calls" in value)


def in_words(value: Any) -> str:
    """A value as readable text: a conversation message by message, anything else by `str`.

    >>> in_words([{"role": "user", "content": "2+2="}, {"role": "assistant", "content": "4"}])
    'user: 2+2=\\nassistant: 4'
    """
    if not is_conversation(value):
        return str(value)
    return "\n".join(f"{role}: {text}" for role, text in turns_of(value))


def turns_of(messages: Messages) -> list[tuple[str, str]]:
    """The role and the text of each message."""
    return [(str(message["role"]), _content(message)) for message in messages]


def _content(message: Mapping[str, Any]) -> str:
    """The text of a message, or of its parts, and its tool calls."""
    content, calls = message.get("content"), message.get("tool_calls")
    parts = [_part(part) for part in (content if isinstance(content, list) else [content])]
    parts += [_call(call) for call in (calls if isinstance(calls, list) else [])]
    return " ".join(filter(None, parts))


def _part(part: object) -> str:
    if isinstance(part, Mapping):
        return str(part["text"]) if "text" in part else f"[{part.get('type', 'something')}]"
    return "" if part is None else str(part)


def _call(call: object) -> str:
    """A tool call, in OpenAI's format or plain; an invalid one with its error."""
    if isinstance(call, Mapping) and "error" in call:
        return f"[a call that {call['error']}: {call.get('text', '')}]"
    inner = call.get("function", call) if isinstance(call, Mapping) else call
    if not isinstance(inner, Mapping):
        return f"[calls {inner}]"
    return f"[calls {inner.get('name')}({inner.get('arguments', '')})]"
