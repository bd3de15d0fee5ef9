"""What a model said as a message: its text, and the calls of tools in it.

Where the tokenizer brings a description of the model's format (`response_template`), that is used. Otherwise the common
formats are recognised:

    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>     Hermes, Qwen
    {"name": "add", "parameters": {"a": 1}}                           Llama, the whole message
    <|python_tag|>{"name": "add", "parameters": {"a": 1}}             Llama
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"


def parse_message(
    tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The assistant's message that these tokens are. A call that is not valid has `error` in place of its name."""
    if getattr(tokenizer, "response_template", None):
        try:
            parsed: Any = tokenizer.parse_response(list(tokens), tools=[dict(tool) for tool in tools] or None)
            return {"role": "assistant", "content": "", **parsed}
        except Exception as error:  # the model's text is not in its own format
            text = str(tokenizer.decode(list(tokens), skip_special_tokens=True))
            return {"role": "assistant", "content": text, "tool_calls": [_invalid(text, str(error))]}
    text = str(tokenizer.decode(list(tokens), skip_special_tokens=True))
    if "tool_call>" not in text and tools:
        # Some tokenizers have the tags, and other marks of calls, among their special tokens.
        kept = str(tokenizer.decode(list(tokens)))
        text = kept if "<tool_call>" in kept or _PYTHON_TAG in kept else text
        text = _without_end(text, tokenizer)
    return parse_text(text, has_tools=bool(tools))


def parse_text(text: str, *, has_tools: bool = True) -> dict[str, Any]:
    """
    >>> parse_text('Let me add. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')["content"]
    'Let me add.'
    >>> parse_text('{"name": "add", "parameters": {"a": 1}}')["tool_calls"]
    [{'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1}}}]
    >>> parse_text('<tool_call>{"name": add}</tool_call>')["tool_calls"][0]["error"]
    'is not valid JSON: Expecting value at character 9'
    """
    if not has_tools:
        return {"role": "assistant", "content": text}
    calls = [_call(match.group(1)) for match in _TAGGED.finditer(text)]
    content = _TAGGED.sub("", text).strip() if calls else text
    if not calls and (whole := text.strip().removeprefix(_PYTHON_TAG).strip()).startswith("{"):
        found = [_call(piece) for piece in whole.split(";")] if _is_calls(whole.split(";")) else [_call(whole)]
        if _PYTHON_TAG in text or all("error" not in call for call in found):
            calls, content = found, ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    return message | ({"tool_calls": calls} if calls else {})


def _is_calls(pieces: Sequence[str]) -> bool:
    return all("error" not in _call(piece) for piece in pieces)


def _call(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        return _invalid(text, f"is not valid JSON: {error.msg} at character {error.pos}")
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return _invalid(text, 'has no name: write {"name": ..., "arguments": {...}}')
    arguments = given.get("arguments", given.get("parameters", {}))
    if isinstance(arguments, str):  # as OpenAI writes them
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            arguments = None
    if not isinstance(arguments, dict):
        return _invalid(text, "has arguments that are not an object of names and values")
    return {"type": "function", "function": {"name": given["name"], "arguments": arguments}}


def _invalid(text: str, error: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "", "arguments": {}}, "error": error, "text": text[:1000]}


def _without_end(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    for special in tokenizer.all_special_tokens:
        if special not in (_PYTHON_TAG, "<tool_call>", "</tool_call>"):
            text = text.replace(special, "")
    return text
