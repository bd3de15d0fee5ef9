"""Where a verb, or a run, says something; also when whoever read it has left, as `head` does.

Whatever is printed here is text, never rich's markup, and every character of it can be seen: names, data and what a
model wrote cannot reach the terminal as escape sequences.
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
    """Prints texts as they are, visibly."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        # Before it is laid out, so that lines break where they should; and once more whatever came of it.
        shown = _visible_text(renderable) if isinstance(renderable, Text) else renderable
        for segment in super().render(shown, options):
            seen = segment.text if segment.control else visible(segment.text)
            yield segment if seen == segment.text else Segment(seen, segment.style)


def _visible_text(text: Text) -> Text:
    if visible(text.plain) == text.plain:
        return text
    parts = text.divide(sorted({edge for span in text.spans for edge in (span.start, span.end)}))
    for part in parts:  # each of one style, from its first character to its last
        part.plain = visible(part.plain)
        part.spans = [Span(0, len(part.plain), span.style) for span in part.spans]
    return text.blank_copy().append_text(Text("").join(parts))


class Console(_TextConsole):
    """Of a verb that only says something: without a reader it ends."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class JobConsole(_TextConsole):
    """Of a verb that does something: without a reader it goes on, and says no more."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


@contextlib.contextmanager
def output_may_be_lost() -> Iterator[None]:
    """Inside, a `print` that cannot be written is lost, and whoever printed goes on: the reader of a pipe has left, the
    terminal was closed, or a log file has no room. No run is worth less than its output."""
    before = sys.stdout, sys.stderr
    guarded = [_MayBeLost(stream) if _has_a_file(stream) else stream for stream in before]
    sys.stdout, sys.stderr = guarded
    try:
        yield
    finally:
        if sys.stdout is guarded[0]:  # else somebody inside has put another in its place
            sys.stdout = before[0]
        if sys.stderr is guarded[1]:
            sys.stderr = before[1]


class _MayBeLost:
    """A stream whose writing never fails. All else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        with contextlib.suppress(OSError):
            self._stream.writelines(lines)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def _has_a_file(stream: TextIO | None) -> bool:
    """Whether it is a file of the system's: not closed from the start (`>&-`), nor an object in memory."""
    try:
        return stream is not None and stream.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False
