"""The output of actors: each writes to a file of its own, which is shown elsewhere by line, with the actor's name.

The file is the buffer between the two: printing never waits for the display, nothing is lost while that is busy, and
the output of a dead actor is still there.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import BinaryIO

from ..private_files import FILE_MODE
from ..record.secrets import redact_values
from ..visible import visible

WINDOW_SECONDS = 5.0
WINDOW_LINES = 100
"""How many lines of an actor are shown in a window of this length; unused room of unobserved windows carries over."""
LAST_LINES = 20
"""How many of the very last lines are always shown."""
LINE_BYTES = 1 << 13
"""Longer lines are split."""
SHOWN_BYTES = 1 << 24
"""The most that is read at a time, to show or only to count."""
HIDDEN = ":proa: "
"""The prefix of lines that stay in the file."""
_NOT_SHOWN = (HIDDEN.encode(), b":actor_name:", b":task_name:", b":job_id:")
"""Prefixes of hidden lines: ours, and those of Ray for its log monitor."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def redirect_output(path: Path) -> None:
    """Redirect everything that this process, and every process that it starts, prints to a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)  # the same file, so that lines of both are in order
    os.close(descriptor)


def print_hidden_traceback() -> None:
    """Print the exception being handled into the file only, as the driver gets it in another way."""
    lines = redact_values(traceback.format_exc()).splitlines()
    sys.stderr.write("".join(f"{HIDDEN}{line}\n" for line in lines))
    sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class Printed:
    """A piece of an actor's output: lines, how many were left out after them, and the very last ones."""

    lines: list[str]
    lines_end: int
    """The place in the file where these lines end."""
    left_out: int
    last: list[str]
    position: int
    """The place in the file where the next piece begins."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece to read of an actor's output: as many lines as there is room for, and the number of those after them.

    A line is read when it is complete. The last piece ends with the file.
    """

    path: str
    position: int
    room: int
    is_last: bool = False

    def read(self) -> Printed:
        """Read it; empty if the file cannot be read."""
        try:
            with Path(self.path).open("rb") as file:
                lines, lines_end = _read_lines(file, self.position, self.room)
                left_out, last, position = 0, list[bytes](), lines_end
                if self.is_last:
                    left_out, last, position = _read_end(file, lines_end)
                elif len(lines) >= self.room:
                    left_out, position = _count_lines(file, lines_end)
        except OSError:
            return Printed([], self.position, 0, [], self.position)
        return Printed(_as_text(lines), lines_end, left_out, _as_text(last), position)


def _read_lines(file: BinaryIO, position: int, room: int) -> tuple[list[bytes], int]:
    lines: list[bytes] = []
    end = position + SHOWN_BYTES
    file.seek(position)
    while len(lines) < room and position < end:
        line = file.readline(LINE_BYTES)
        if not line.endswith(b"\n") and len(line) < LINE_BYTES:
            break  # it is still being written
        position += len(line)
        if not line.startswith(_NOT_SHOWN):
            lines.append(line.removesuffix(b"\n"))
    return lines, position


def _count_lines(file: BinaryIO, position: int) -> tuple[int, int]:
    file.seek(position)
    block = file.read(SHOWN_BYTES)
    complete = block.rfind(b"\n") + 1
    return block.count(b"\n", 0, complete), position + complete


def _read_end(file: BinaryIO, position: int) -> tuple[int, list[bytes], int]:
    """The number of lines before the very last ones, and these."""
    end = file.seek(0, os.SEEK_END)
    tail = max(position, end - LAST_LINES * LINE_BYTES)
    left_out, place = 0, position
    file.seek(position)
    while place < tail and (block := file.read(min(SHOWN_BYTES, tail - place))):
        left_out += block.count(b"\n")
        place += len(block)
    rest = file.read(end - place).removesuffix(b"\n")
    lines = [line for line in rest.split(b"\n") if not line.startswith(_NOT_SHOWN)] if place < end else []
    return left_out + len(lines[:-LAST_LINES]), lines[-LAST_LINES:], end


def _as_text(lines: list[bytes]) -> list[str]:
    """Lines as a terminal would show them, without secrets, which may span several lines."""
    if not lines:
        return []
    text = redact_values(b"\n".join(lines).decode("utf-8", errors="replace"))
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]


@dataclass
class ShownOutput:
    """The shown part of one actor's output, and the room for more."""

    name: str
    path: str
    where: str
    """The file, and the machine if it is another, for messages."""
    clock: Callable[[], float] = monotonic
    position: int = 0
    """Where in the file the next piece begins."""
    _window: float = field(init=False)
    _room: int = field(default=WINDOW_LINES, init=False)
    _left_out: int = field(default=0, init=False)
    _gap_begin: int = field(default=0, init=False)
    """The place in the file where lines begin that were left out and not mentioned yet."""
    _has_ended: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._window = self.clock()

    def end(self) -> None:
        """Note that the actor has ended, so that its last lines are shown."""
        self._has_ended = True

    def next_piece(self) -> Piece:
        """The next piece to read, with the room of all windows since the last one."""
        passed = int((self.clock() - self._window) // WINDOW_SECONDS)
        if passed > 0:
            self._window += passed * WINDOW_SECONDS
            self._room += passed * WINDOW_LINES
        is_last, self._has_ended = self._has_ended, False
        if is_last:  # lines left out and not mentioned yet may be among the very last ones
            self.position, self._left_out = self._gap_begin, 0
        return Piece(self.path, self.position, self._room, is_last)

    def take(self, printed: Printed) -> list[str]:
        """The lines to show for a piece."""
        shown = self._gap() if self._room else []
        shown += [self._line(line) for line in printed.lines]
        if not self._left_out:
            self._gap_begin = printed.lines_end
        self._room = min(WINDOW_LINES, max(0, self._room - len(printed.lines)))
        self._left_out += printed.left_out
        if printed.last:
            shown += [*self._gap(), *(self._line(line) for line in printed.last)]
            self._gap_begin = printed.position
        self.position = printed.position
        return shown

    def _gap(self) -> list[str]:
        count, self._left_out = self._left_out, 0
        words = f"{count:,} line{'' if count == 1 else 's'} left out; all are in {self.where}"
        return [self._line(words)] if count else []

    def _line(self, text: str) -> str:
        return f"[{self.name}] {visible(_COLOUR.sub('', text))}"


def write_lines(lines: list[str]) -> None:
    """Print lines to this process's output, whatever its encoding."""
    stream = sys.stdout
    if not lines or stream is None:
        return
    text = "\n".join(lines) + "\n"
    with contextlib.suppress(OSError, ValueError):  # closed, or the disk is full
        try:
            stream.write(text)
        except UnicodeEncodeError:
            stream.write(text.encode("ascii", "backslashreplace").decode())
        stream.flush()
