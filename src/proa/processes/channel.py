"""Numbered messages over a socket, with a deadline for sending and for receiving."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import deque
from time import monotonic
from typing import NamedTuple

_HEADER = struct.Struct(">8sQQ")
_MARK = b"proa \x00\xf7\n"  # begins every message, and no stray print or log line
_MIN_SECONDS = 0.001  # a socket's timeout of 0 means "do not wait"
PIECE = 1 << 18
"""How many bytes are read at once."""


class StrayBytesError(Exception):
    """The received bytes are not a message: something else wrote to the connection."""


class Message(NamedTuple):
    """A question and its answer have the same number, so that answers cannot be mixed up."""

    number: int
    content: bytes

    def encoded(self) -> bytes:
        return _HEADER.pack(_MARK, self.number, len(self.content)) + self.content


class MessageReader:
    """Puts messages together from the pieces in which they arrive.

    >>> reader = MessageReader()
    >>> reader.feed(Message(7, b"hello").encoded()[:20]), reader.feed(Message(7, b"hello").encoded()[20:])
    ([], [Message(number=7, content=b'hello')])
    """

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, piece: bytes) -> list[Message]:
        """The messages that are whole now; StrayBytesError as soon as something cannot be one."""
        self._received += piece
        whole = []
        while len(self._received) >= _HEADER.size:
            mark, number, size = _HEADER.unpack_from(self._received)
            if mark != _MARK or len(self._received) < _HEADER.size + size:
                break
            whole.append(Message(number, bytes(self._received[_HEADER.size : _HEADER.size + size])))
            del self._received[: _HEADER.size + size]
        # Of less than a header too: stray bytes are recognized at once, without waiting until they fill one.
        if self._received[: len(_MARK)] != _MARK[: len(self._received)]:
            raise StrayBytesError
        return whole


class Channel:
    """One end of a connection between two processes; EOFError when the other end is closed."""

    def __init__(self, endpoint: socket.socket) -> None:
        self._endpoint = endpoint
        self._sending = threading.Lock()  # a function's threads may print while it answers
        self._reader = MessageReader()
        self._arrived: deque[Message] = deque()

    def send(self, message: Message, seconds: float | None = None) -> None:
        """Send a message; TimeoutError if the other side does not receive it in time."""
        self._endpoint.settimeout(None if seconds is None else max(seconds, _MIN_SECONDS))
        try:
            with self._sending:
                self._endpoint.sendall(message.encoded())
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError from error

    def receive(self, seconds: float | None = None) -> Message:
        """The next message; TimeoutError if none arrives in time, StrayBytesError if it is not a message."""
        until = None if seconds is None else monotonic() + seconds
        while not self._arrived:
            left = None if until is None else until - monotonic()
            if left is not None and left < -1.0:  # a little comes all the time, and never a whole message
                raise TimeoutError
            self._endpoint.settimeout(None if left is None else max(left, _MIN_SECONDS))
            try:
                piece = self._endpoint.recv(PIECE)
            except TimeoutError:
                raise
            except OSError as error:
                raise EOFError from error
            if not piece:
                raise EOFError
            self._arrived.extend(self._reader.feed(piece))
        return self._arrived.popleft()

    def arrived(self) -> list[Message]:
        """What has arrived, without waiting."""
        try:
            piece = self._endpoint.recv(PIECE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            piece = None
        except OSError as error:
            raise EOFError from error
        if piece == b"":
            raise EOFError
        if piece:
            self._arrived.extend(self._reader.feed(piece))
        whole = list(self._arrived)
        self._arrived.clear()
        return whole

    def fileno(self) -> int:
        return self._endpoint.fileno()

    def close_on_fork(self) -> None:
        """Keep child processes from inheriting this end, and close it in forks."""
        self._endpoint.set_inheritable(False)
        os.register_at_fork(after_in_child=self._endpoint.close)

    def close(self) -> None:
        self._endpoint.close()
