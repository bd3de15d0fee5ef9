"""Elements of a page, made so that a text can only ever be text: whatever is no `Markup` is escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from html import escape
from typing import Any

from .text import visible


class Markup(str):
    """Text that is markup already: it was made here, from escaped parts."""

    __slots__ = ()


MOST_EXACT = 1 << 53
"""A script has no whole numbers beyond, only floats; they are given to it as texts."""
_VOID = frozenset({"meta", "input", "br", "link"})


def tag(name: str, /, *inside: object, **attributes: object) -> Markup:
    """An element. `class_` and `data_x` are `class` and `data-x`; an attribute that is None or False is left out.

    >>> tag("p", "1 < 2", tag("b", "\\x1b"), class_="note", hidden=True, id=None)
    '<p class="note" hidden>1 &lt; 2<b>⟨U+001B⟩</b></p>'
    """
    said = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _VOID:
        return Markup(f"<{name}{said}>")
    return Markup(f"<{name}{said}>{join(inside)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Parts one after the other; lists among them are taken apart, None is nothing."""
    return Markup("".join(map(_part, parts)))


def raw(text: str) -> Markup:
    """The page's own style, script or drawing. Nothing from a record may come here."""
    return Markup(text)


def as_json(content: Any) -> Markup:
    """Plain values for a script to parse, such that no text in them can end the element they stand in.

    >>> as_json({"a": "</script>&"})
    '{"a":"\\\\u003c/script\\\\u003e\\\\u0026"}'
    """
    text = json.dumps(plain(content), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for character in "<>&":  # all other characters that mean something to a parser of HTML are not ASCII
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def plain(value: Any) -> Any:
    """What a page can hold of a value: texts that can be seen, numbers of six digits, None for what is no number.

    >>> plain([2**53, 2**53 + 1, 0.123456789])
    [9007199254740992, '9007199254740993', 0.123457]
    """
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= MOST_EXACT else str(value)
    if isinstance(value, float):
        return _shortest(value)
    if isinstance(value, dict):
        return {visible(str(key)): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value]


def _shortest(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True or value is False:
        return f" {name}" if value else ""
    return f' {name}="{escape(visible(str(value)), quote=True)}"'


def _part(part: object) -> str:
    if part is None:
        return ""
    if isinstance(part, Markup):
        return part
    if isinstance(part, list | tuple):
        return join(part)
    return escape(visible(str(part)), quote=False)
