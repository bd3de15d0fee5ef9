"""Consoles for the command line and for runs, also when the reader of a pipe has left, as `head` does.

Everything is printed as text, never as rich's markup, with invisible characters made visible: names, data and output of
models cannot reach the terminal as escape sequences.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

import rich.console
from rich.segment import Segment
from rich.text import Span, Text

from .visible import visible


class _TextConsole(rich.console.Console):
    """Prints text without markup, with invisible characters made visible."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        # Before layout, so that lines break correctly, and again on the result.
        safe = _visible_text(renderable) if isinstance(renderable, Text) else renderable
        for segment in super().render(safe, options):
            text = segment.text if segment.control else visible(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


def _visible_text(text: Text) -> Text:
    if visible(text.plain) == text.plain:
        return text
    parts = text.divide(sorted({edge for span in text.spans for edge in (span.start, span.end)}))
    for part in parts:  # each has one style throughout
        part.plain = visible(part.plain)
        part.spans = [Span(0, len(part.plain), span.style) for span in part.spans]
    return text.blank_copy().append_text(Text("").join(parts))


class Console(_TextConsole):
    """For commands that only print: they end when the reader leaves."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class JobConsole(_TextConsole):
    """For commands that do work: they continue silently when the reader leaves."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


@contextlib.contextmanager
def tolerate_lost_output() -> Iterator[None]:
    """Inside, a `print` that cannot be written is dropped and the run continues: the reader of a pipe has left, the
    terminal was closed, or the disk of a log file is full."""
    before = sys.stdout, sys.stderr
    guarded = [_LossyStream(stream) if _has_descriptor(stream) else stream for stream in before]
    sys.stdout, sys.stderr = guarded
    try:
        yield
    finally:
        if sys.stdout is guarded[0]:  # else code inside has replaced it
            sys.stdout = before[0]
        if sys.stderr is guarded[1]:
            sys.stderr = before[1]


class _LossyStream:
    """A stream whose writes never fail. All else is delegated."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        with contextlib.suppress(OSError):
            self._stream.writelines(lines)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def _has_descriptor(stream: TextIO | None) -> bool:
    """Whether it is an open file: not closed from the start (`>&-`), nor an object in memory."""
    try:
        return stream is not None and stream.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False
