"""What users' functions print in a child process, sent to the parent and shown there."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import Any, TextIO

from .channel import Channel, Message

STDOUT, STDERR = 0, 2**63
"""The numbers of messages with what a function printed; no question has them."""
_LONGEST_LINE = 8192
_BURST_SECONDS = 10.0


class PrintedText:
    """Sends what functions print to the parent, line by line: only there is it known whether a panel or a notebook is
    in the way. All else is the stream's that it stands for. Threads do not mix their lines. With `most_per_second`,
    what is printed faster for more than ten seconds is left out, and counted."""

    def __init__(
        self, channel: Channel, number: int, stream: TextIO | None, *, most_per_second: float | None = None
    ) -> None:
        self._channel, self._number, self._stream = channel, number, stream
        self._own_id = os.getpid()
        self._lines: dict[int, str] = {}
        self._limit = None if most_per_second is None else _Limit(most_per_second)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if os.getpid() != self._own_id:  # a function forked: the channel is its parent's
            return self._stream.write(text) if self._stream is not None else 0
        thread = threading.get_ident()
        lines, newline, rest = (self._lines.pop(thread, "") + text).rpartition("\n")
        if len(rest) > _LONGEST_LINE:
            lines, newline, rest = lines + newline + rest, "", ""
        if rest:
            self._lines[thread] = rest
        self._send(lines + newline)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Send what this thread has begun; the lines of others are not done."""
        if os.getpid() == self._own_id:
            self._send(self._lines.pop(threading.get_ident(), ""))

    def flush_all(self) -> None:
        """Send what any thread has begun: at an end."""
        if os.getpid() == self._own_id:
            for thread in list(self._lines):
                self._send(self._lines.pop(thread, ""))

    def _send(self, text: str) -> None:
        if text and self._limit is not None:
            text = self._limit.passed(text)
        if text:
            with suppress(EOFError):  # the parent is gone
                self._channel.send(Message(self._number, text.encode("utf-8", "backslashreplace")))


class _Limit:
    """Lets so many characters pass in a second, and what was saved up in a while of less."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._lock = threading.Lock()
        self._room = per_second * _BURST_SECONDS
        self._since = monotonic()
        self._left_out = 0

    def passed(self, text: str) -> str:
        with self._lock:
            now = monotonic()
            self._room += (now - self._since) * self._per_second
            self._room, self._since = min(self._room, self._per_second * _BURST_SECONDS), now
            if len(text) > self._room:
                self._left_out += len(text)
                return ""
            self._room -= len(text)
            note = f"[{self._left_out:,} characters are left out, printed too fast]\n" if self._left_out else ""
            self._left_out = 0
            return note + text


def show(message: Message) -> None:
    """Write what a child printed to the stream of this process that it printed to there."""
    stream = sys.stdout if message.number == STDOUT else sys.stderr
    if stream is not None:  # which may be closed
        stream.write(message.content.decode("utf-8", "replace"))
        stream.flush()
