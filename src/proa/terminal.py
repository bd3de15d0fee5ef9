"""Where a verb, or a run, says something; also when whoever read it has left, as `head` does."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import rich.console


class Console(rich.console.Console):
    """Of a verb that only says something: without a reader it ends."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class JobConsole(rich.console.Console):
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
