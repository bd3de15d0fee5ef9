"""Where a verb, or a run, says something; also when whoever read it has left, as `head` does.

Whatever is printed here is text, never rich's markup, and every character of it can be seen: names, data and what a
model wrote cannot reach the terminal as escape sequences.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Any

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
