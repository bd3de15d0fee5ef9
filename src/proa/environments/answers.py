"""What an environment returned, in the form in which it travels: JSON, understood where it can mean one thing only."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..data.messages import is_message
from ..data.reward_limits import fault_of
from ..spelling import did_you_mean
from .protocol import Start, Step
from .schemas import tool_schema
from .text import MOST_CHARACTERS, as_text, described, plain, prompt_messages, shortened

MOST_PROMPT_CHARACTERS = 1_000_000
"""Of one message with which a trajectory begins."""
_MOST_WITH_NOTE = MOST_CHARACTERS + 100  # what was cut off already has a note of it
_STEP_FIELDS = tuple(field.name for field in fields(Step))


class WrongShape(Exception):  # noqa: N818 - its message is the end of a sentence
    """Something else was returned than the protocol has; says what to return instead."""


def as_start(value: Any, row: Mapping[str, Any]) -> Start:
    """
    >>> as_start(None, {"prompt": "2+2?"}).messages
    [{'role': 'user', 'content': '2+2?'}]
    """
    if value is None:
        value = Start(prompt_messages(row.get("prompt")))
    if not isinstance(value, Start):
        value = _start_from(value)
    try:
        messages = _messages(value.messages, MOST_PROMPT_CHARACTERS)
        tools = [plain(tool_schema(tool)) for tool in value.tools]
    except TypeError as error:
        raise WrongShape(f"a Start that cannot be read ({error}): {_START_FORM}") from error
    if not messages:
        raise WrongShape(f"no messages: {_START_FORM}")
    return Start(messages, tools)


_START_FORM = "return Start(messages, tools), a text, a list of messages, or None for the row's own prompt"
_STEP_FORM = "return Step(messages, reward=..., done=...), a text, a list of messages, or None where it is done"


def _start_from(value: Any) -> Start:
    if isinstance(value, str) or is_message(value) or _is_messages(value):
        return Start(value)
    if isinstance(value, Mapping) and "messages" in value and not value.keys() - {"messages", "tools"}:
        return Start(**value)
    raise WrongShape(f"{described(value)}: {_START_FORM}")


def as_step(value: Any) -> Step:
    """
    >>> as_step("Warmer."), as_step(None)
    (Step(messages=[{'role': 'user', 'content': 'Warmer.'}], reward=None, done=False, tool_calls=0, tool_errors=0), \
Step(messages=[], reward=None, done=True, tool_calls=0, tool_errors=0))
    """
    if value is None:
        return Step([], done=True)
    if not isinstance(value, Step):
        value = _step_from(value)
    try:
        return Step(
            _messages(value.messages),
            reward=as_reward(value.reward),
            done=bool(value.done),
            tool_calls=int(value.tool_calls),
            tool_errors=int(value.tool_errors),
        )
    except (TypeError, ValueError) as error:
        raise WrongShape(f"a Step that cannot be read ({error}): {_STEP_FORM}") from error


def _step_from(value: Any) -> Step:
    if isinstance(value, str) or is_message(value) or _is_messages(value):
        return Step(value)
    if isinstance(value, Mapping) and value and (unknown := value.keys() - set(_STEP_FIELDS)) != value.keys():
        for name in sorted(map(str, unknown)):
            near = did_you_mean(name, _STEP_FIELDS) or f" (there are: {', '.join(_STEP_FIELDS)})"
            raise WrongShape(f"a dict with {name!r}, which a Step does not have{near}")
        return Step(**value)
    raise WrongShape(f"{described(value)}: {_STEP_FORM}")


def as_reward(value: Any) -> float | None:
    """
    >>> as_reward(1), as_reward(None)
    (1.0, None)
    """
    if value is None:
        return None
    number = value.item() if hasattr(value, "item") else value  # numpy and torch scalars
    if not isinstance(number, numbers.Real):
        raise WrongShape(f"the reward {described(value)}: a reward is a number, or None for none")
    if fault := fault_of(float(number)):
        raise WrongShape(f"the reward {float(number):g}, {fault}")
    return float(number)


def _is_messages(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(is_message, value))


def _messages(given: Any, most: int = _MOST_WITH_NOTE) -> list[dict[str, Any]]:
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    elif is_message(given):
        given = [given]
    if not isinstance(given, Sequence):
        raise WrongShape(f"{described(given)} for messages: give a list of messages, each with role and content")
    for one in given:
        if not is_message(one):
            raise WrongShape(f"{described(one)} among the messages: each is a dict with 'role' and 'content'")
    return [_message(one, most) for one in given]


def _message(given: Mapping[str, Any], most: int) -> dict[str, Any]:
    """As JSON, with a text of bearable length."""
    message: dict[str, Any] = plain({key: value for key, value in given.items() if key != "content"})
    content = given.get("content")
    if isinstance(content, list | tuple) and all(isinstance(part, Mapping) for part in content):
        parts = [plain(part) for part in content]
        for part in parts:
            if isinstance(part.get("text"), str):
                part["text"] = shortened(part["text"], most)
        return message | {"content": parts}
    if content is None:
        return message | ({"content": None} if "content" in given else {})
    return message | {"content": shortened(plain(content) if isinstance(content, str) else as_text(content), most)}
