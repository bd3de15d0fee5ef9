"""Reads untrusted YAML: plain values, bounded in size and depth; errors name the line."""

from __future__ import annotations

import codecs
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from ..errors import ProaError

MOST_BYTES = 1 << 20
MOST_VALUES = 100_000
"""Keys and values with aliases expanded: a few lines of nested aliases can stand for billions."""
DEEPEST = 64


class ConfigError(ProaError, ValueError):
    """The configuration cannot be used as written."""


class YamlError(ConfigError):
    """A text is too large or has other than plain values; the message starts with the line."""


class YamlSyntaxError(YamlError):
    """A text is not YAML."""


def read_text(file: Path) -> str:
    """The text of a configuration's file."""
    try:
        if stat.S_ISFIFO(file.stat().st_mode):  # opening one may block forever
            raise OSError(0, "it is a pipe, and the file is read more than once")
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"the configuration {file} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a path with a NUL in it
        raise ConfigError(f"the configuration {str(file)!r} cannot be read: {error}") from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"the configuration {file} cannot be read: it has more than {MOST_BYTES >> 20} MiB")
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        raise ConfigError(f"{file}, line {line}: byte 0x{byte:02x} is not UTF-8: save the file as UTF-8") from None
    if found := _NOT_TEXT.search(text):
        line = text.count("\n", 0, found.start()) + 1
        what = "a NUL byte, as UTF-16 has them" if found[0] == "\0" else f"the character {found[0]!r}"
        raise ConfigError(f"{file}, line {line}: there is {what}: save the file as UTF-8 text")
    return text


def load(text: str) -> tuple[Any, yaml.Node | None]:
    """The content of a YAML text, and its nodes."""
    try:
        _check_size(text)
        node = yaml.compose(text, Loader=_Loader)
        content = None if node is None else _Constructor().construct_document(node)
        return unshared(content), yaml.compose(text, Loader=_Loader)  # composed again: merging changed the first
    except yaml.MarkedYAMLError as error:
        line = _line(error.problem_mark or error.context_mark)
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlSyntaxError(f"line {line}: this is not YAML: {problem}") from None
    except yaml.YAMLError as error:
        raise YamlSyntaxError(f"line 1: this is not YAML: {error}") from None


def unshared(value: Any) -> Any:
    """A deep copy without shared parts: a flag for one arm must not change others that use the same anchor."""
    if isinstance(value, Mapping):
        return {key: unshared(inner) for key, inner in value.items()}
    return [unshared(inner) for inner in value] if isinstance(value, list) else value


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NOT_TEXT = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that YAML does not allow."""


class _Mark(Protocol):
    """A place in a text, of either of yaml's parsers."""

    @property
    def line(self) -> int: ...


@dataclass(slots=True)
class _Extent:
    """The size of a part of a text with aliases expanded."""

    values: int = 1
    depth: int = 1
    anchor: str | None = None

    def add(self, inner: _Extent) -> None:
        self.values += inner.values
        self.depth = max(self.depth, inner.depth + 1)


def _check_size(text: str) -> None:
    """Refuse a text that would take too long to build, from its events, in one pass."""
    open_parts: list[_Extent] = []
    anchors: dict[str, _Extent | None] = {}
    documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _wrong(event.start_mark, "a second document starts here, and a configuration is one document")
        elif isinstance(event, yaml.CollectionStartEvent):
            open_parts.append(_Extent(anchor=event.anchor))
            if event.anchor is not None:
                anchors[event.anchor] = None  # still open
            if len(open_parts) > DEEPEST:
                raise _wrong(event.start_mark, f"this is nested more than {DEEPEST} deep")
        elif isinstance(event, yaml.CollectionEndEvent | yaml.ScalarEvent | yaml.AliasEvent):
            part = _close(event, open_parts, anchors)
            if open_parts:
                open_parts[-1].add(part)
            if part.values > MOST_VALUES or any(one.values > MOST_VALUES for one in open_parts[-1:]):
                raise _wrong(event.start_mark, f"with aliases expanded this has more than {MOST_VALUES:,} values")
            if len(open_parts) + part.depth > DEEPEST:
                raise _wrong(event.start_mark, f"this is nested more than {DEEPEST} deep")


def _close(
    event: yaml.CollectionEndEvent | yaml.ScalarEvent | yaml.AliasEvent,
    open_parts: list[_Extent],
    anchors: dict[str, _Extent | None],
) -> _Extent:
    if isinstance(event, yaml.AliasEvent):
        if event.anchor in anchors and anchors[event.anchor] is None:
            raise _wrong(event.start_mark, f"*{event.anchor} is inside the part that it refers to")
        return anchors.get(str(event.anchor)) or _Extent()  # an unknown one is reported when the text is read
    part = open_parts.pop() if isinstance(event, yaml.CollectionEndEvent) else _Extent(anchor=event.anchor)
    if part.anchor is not None:
        anchors[part.anchor] = part
    return part


class _Constructor(yaml.constructor.SafeConstructor):
    """Builds plain values; a value that cannot be built is reported with its line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            if isinstance(error, ConfigError):
                raise
            value = str(node.value)
            what = f"{value[:20]}… ({len(value):,} characters)" if len(value) > 40 else repr(value)
            why = "the number is too long" if "digit" in str(error) else str(error)
            raise _wrong(node.start_mark, f"{what} cannot be read: {why}") from None

    def construct_undefined(self, node: yaml.Node) -> Any:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise _wrong(node.start_mark, f"the tag {tag} is not supported: write plain values")


_Constructor.add_constructor(None, _Constructor.construct_undefined)  # type: ignore[type-var]


def _wrong(mark: _Mark | None, message: str) -> YamlError:
    return YamlError(f"line {_line(mark)}: {message}")


def _line(mark: _Mark | None) -> int:
    return 1 if mark is None else int(mark.line) + 1
