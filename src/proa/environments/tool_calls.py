"""What a model said as a message: its text, and the calls of tools in it.

Where the tokenizer brings a description of the model's format (`response_template`), that is used; then the package
`renderers`, where it is installed and knows the model. Otherwise the common formats are recognised:

    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>     Hermes, Qwen
    {"name": "add", "parameters": {"a": 1}}                           Llama, the whole message
    <|python_tag|>{"name": "add", "parameters": {"a": 1}}             Llama

The text stays the model's own words. What it thinks (`<think>`) is part of them, unless the `response_template` says
that it is `reasoning_content`; calls in it are drafts.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"
_MARKS = (_PYTHON_TAG, "<tool_call>", "</tool_call>", "<think>", "</think>")
_THOUGHT = "</think>"


def parse_message(
    tokens: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    prefix: Sequence[int] = (),
) -> dict[str, Any]:
    """The assistant's message that these tokens are. A call that is not valid has `error` in place of its name.

    `prefix` is the prompt that the tokens follow: templates may have begun the message there (`<think>`).
    """
    if not tokens:
        return {"role": "assistant", "content": ""}
    if getattr(tokenizer, "response_template", None):
        return _by_template(list(tokens), tokenizer, tools, list(prefix))
    if tools and (renderer := _renderer(tokenizer)) is not None:
        return _by_renderer(list(tokens), tokenizer, tools, list(prefix), renderer)
    return parse_text(_text(tokens, tokenizer, keeps_marks=bool(tools)), has_tools=bool(tools))


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
        return _message(text, [])
    before, thought, said = text.rpartition(_THOUGHT)
    if calls := [_call(match.group(1)) for match in _TAGGED.finditer(said)]:
        return _message((before + thought + _TAGGED.sub("", said)).strip(), calls)
    whole = said.strip()
    if whole.startswith((_PYTHON_TAG, "{")):
        pieces = whole.removeprefix(_PYTHON_TAG).split(";")
        calls = [_call(piece) for piece in pieces] if all(map(_is_call, pieces)) else [_call(";".join(pieces))]
        if whole.startswith(_PYTHON_TAG) or all(map(_is_call, pieces)) or _is_call(whole):
            return _message((before + thought).strip(), calls)
    return _message(text, [])


def _message(content: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})


def _by_template(
    tokens: list[int], tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]], prefix: list[int]
) -> dict[str, Any]:
    try:
        parsed: Any = tokenizer.parse_response(tokens, prefix=prefix, tools=[dict(tool) for tool in tools] or None)
        calls = [_as_call(call) for call in parsed.pop("tool_calls", None) or ()]
        content = parsed.pop("content", None) or ""
        if isinstance(content, str) and tokenizer.eos_token:
            content = content.removesuffix(tokenizer.eos_token)
        message: dict[str, Any] = parsed | _message(content, calls)
        return message
    except Exception as error:  # the model's text is not in its own format
        text = _text(tokens, tokenizer, keeps_marks=False)
        return _message(text, [_invalid(text, f"is not in the model's format: {error}")] if tools else [])


@functools.lru_cache(maxsize=8)
def _renderer(tokenizer: PreTrainedTokenizerBase) -> Any:
    """The renderer of a model that the package `renderers` knows by name; its fallback for others knows no calls."""
    if importlib.util.find_spec("renderers") is None:
        return None
    try:
        base = importlib.import_module("renderers.base")
        return base.create_renderer(tokenizer) if tokenizer.name_or_path in base.MODEL_RENDERER_MAP else None
    except ImportError:  # it needs something that is not installed
        return None


def _by_renderer(
    tokens: list[int],
    tokenizer: PreTrainedTokenizerBase,
    tools: Sequence[Mapping[str, Any]],
    prefix: list[int],
    renderer: Any,
) -> dict[str, Any]:
    specs = [dict(tool.get("function", tool)) for tool in tools]
    parsed = renderer.parse_response(tokens, tools=specs, prompt_ids=prefix or None)
    if not parsed.tool_calls:
        return _message(_text(tokens, tokenizer, keeps_marks=False), [])
    calls = []
    for call in parsed.tool_calls:
        if call.status == "ok":
            one = _as_call({"function": {"name": call.name, "arguments": call.arguments}})
            calls.append(one | ({"id": call.id} if call.id else {}))
        elif call.status == "unknown_tool":  # answered with the names that there are
            calls.append(_as_call({"function": {"name": call.name, "arguments": call.arguments or {}}}))
        else:
            calls.append(_invalid(call.raw, f"is not in the model's format: {call.status.replace('_', ' ')}"))
    thought = parsed.reasoning_content
    return _message((f"<think>{thought}{_THOUGHT}" if thought else "") + parsed.content, calls)


def _text(tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase, *, keeps_marks: bool) -> str:
    """The text of tokens. Some tokenizers have the marks of calls among their special tokens, which are left out
    otherwise."""
    if not keeps_marks:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True))
    text = str(tokenizer.decode(list(tokens)))
    for special in special_texts(tokenizer):
        if special not in _MARKS:
            text = text.replace(special, "")
    return text


@functools.lru_cache(maxsize=8)
def special_texts(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Of all special tokens, the longest first; a tokenizer names only some of them itself (Llama's `<|eom_id|>` is not
    among them)."""
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return tuple(sorted({*added, *tokenizer.all_special_tokens}, key=lambda text: (-len(text), text)))


def _is_call(text: str) -> bool:
    """Whether a text is a call and cannot be anything else: an answer may be JSON too, with a name in it."""
    try:
        given = json.loads(text)
    except ValueError:
        return False
    return isinstance(given, dict) and not given.keys().isdisjoint(("arguments", "parameters")) and "name" in given


def _call(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        return _invalid(text, f"is not valid JSON: {error.msg} at character {error.pos}")
    except RecursionError:
        return _invalid(text, "is nested too deeply")
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return _invalid(text, 'has no name: write {"name": ..., "arguments": {...}}')
    return _as_call({"function": {"name": given["name"], "arguments": given.get("arguments", given.get("parameters"))}})


def _as_call(given: Any) -> dict[str, Any]:
    """A call in the form that chat templates take, whatever a parser made of it."""
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return _invalid(str(given), 'has no name: write {"name": ..., "arguments": {...}}')
    arguments = function.get("arguments")
    if isinstance(arguments, str):  # as OpenAI writes them
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            return _invalid(arguments, f"of {function['name']!r} has arguments that are not valid JSON: {error}")
    if not isinstance(arguments, Mapping | None):
        wrong = f"of {function['name']!r} has arguments that are not an object of names and values"
        return _invalid(json.dumps(arguments), wrong)
    call = {"type": "function", "function": {"name": function["name"], "arguments": dict(arguments or {})}}
    return call | ({"id": given["id"]} if given.get("id") else {})


def _invalid(text: str, error: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "", "arguments": {}}, "error": error, "text": text[:1000]}
