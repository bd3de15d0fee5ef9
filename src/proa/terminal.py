"""Where a verb, or a run, says something; also when whoever read it has left, as `head` does."""

from __future__ import annotations

import errno
import os

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
