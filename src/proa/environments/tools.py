"""Tools: typed Python functions that a model may call, and the environment that calls them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import SettingError
from ..spelling import did_you_mean
from .protocol import Message, Start, Step

MOST_CHARACTERS = 65_536
"""Of one result, for the model; the rest is cut off, with a note."""


def tool_schema(function: Callable[..., Any] | Mapping[str, Any]) -> dict[str, Any]:
    """What a chat template is told about a tool, from its name, its annotations and its docstring."""
    if isinstance(function, Mapping):
        return dict(function)
    from transformers.utils.chat_template_utils import get_json_schema  # slow to import

    try:
        return dict(get_json_schema(function))
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise SettingError(
            f"tool {name!r} cannot be described to a model: {error}. Give each parameter a type, and describe it in "
            "the docstring under 'Args:'"
        ) from error


class ToolEnvironment:
    """Calls tools until the model answers without a call. Rewards come from reward functions."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self._functions = {getattr(function, "__name__", type(function).__name__): function for function in functions}
        if len(self._functions) < len(functions):
            raise SettingError(f"two tools have the same name, among {', '.join(self._functions)}: rename one of them")
        self._schemas = [tool_schema(function) for function in functions]

    def reset(self, row: Mapping[str, Any], *, seed: int) -> Start:
        return Start(prompt_messages(row["prompt"]), self._schemas)

    async def step(self, message: Message) -> Step:
        calls = message.get("tool_calls") or []
        if not calls:
            return Step(done=True)
        answers = [await self._answer(call) for call in calls]
        errors = sum(is_error for _, is_error in answers)
        return Step([answer for answer, _ in answers], tool_calls=len(calls), tool_errors=errors)

    def close(self) -> None:
        pass

    async def _answer(self, call: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """The message that answers a call, and whether it tells of an error."""
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if "error" in call:
            return tool_message(name, f"Error: the call {call['error']}"), True
        function = self._functions.get(name)
        if function is None:
            known = did_you_mean(name, self._functions) or f" (there are: {', '.join(self._functions)})"
            return tool_message(name, f"Error: there is no tool {name!r}{known}"), True
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            return tool_message(name, f"Error: {name}: {error}"), True
        try:
            return tool_message(name, as_text(await call_anywhere(function, **arguments))), False
        except Exception as error:  # a tool of the user's: the model is told
            return tool_message(name, f"Error: {type(error).__name__}: {error}"), True


def tool_message(name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": content}


async def call_anywhere(function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """What a function returns, sync or async; a sync one runs in a thread, so that others go on."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):
        return await function(*given, **named)
    found = await asyncio.get_running_loop().run_in_executor(None, functools.partial(function, *given, **named))
    return await found if inspect.isawaitable(found) else found


def prompt_messages(prompt: Any) -> list[dict[str, Any]]:
    """A prompt as messages; text is the user's."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(one) for one in prompt]


def as_text(value: Any) -> str:
    """A result as a model reads it: text as it is, all else as JSON; bytes that are no text with replacement marks.

    >>> as_text({"a": 1}), as_text(b"ok \\xff"), as_text("x" * 70_000)[-37:]
    ('{"a": 1}', 'ok �', 'x [4,464 more characters are cut off]')
    """
    if isinstance(value, bytes | bytearray | memoryview):
        text = bytes(value[: 4 * MOST_CHARACTERS]).decode("utf-8", "replace")
    elif isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            text = str(value)
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]} [{len(text) - MOST_CHARACTERS:,} more characters are cut off]"
    return text.encode("utf-8", "replace").decode("utf-8")  # lone halves of surrogate pairs have no bytes
