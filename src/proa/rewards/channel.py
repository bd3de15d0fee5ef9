"""Numbered messages over a socket, with a deadline for sending and for receiving."""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import NamedTuple

_HEADER = struct.Struct(">8sQQ")
_MARK = b"proa \x00\xf7\n"  # begins every message, and no stray print or log line
_MIN_SECONDS = 0.001  # a socket's timeout of 0 means "do not wait"


class StrayBytesError(Exception):
    """The received bytes are not a message: something else wrote to the connection."""


STDOUT, STDERR = 0, 2**63
"""The numbers of messages with what a function printed; no question has them."""


class Message(NamedTuple):
    """A question and its answer have the same number, so that answers cannot be mixed up."""

    number: int
    content: bytes


class Channel:
    """One end of a connection between two processes; EOFError when the other end is closed."""

    def __init__(self, endpoint: socket.socket) -> None:
        self._endpoint = endpoint
        self._sending = threading.Lock()  # a function's threads may print while it answers

    def send(self, message: Message, seconds: float | None = None) -> None:
        """Send a message; TimeoutError if the other side does not receive it in time."""
        self._endpoint.settimeout(None if seconds is None else max(seconds, _MIN_SECONDS))
        try:
            with self._sending:
                self._endpoint.sendall(_HEADER.pack(_MARK, message.number, len(message.content)))
                self._endpoint.sendall(message.content)
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError from error

    def receive(self, seconds: float | None = None) -> Message:
        """The next message; TimeoutError if none arrives in time, StrayBytesError if it is not a message."""
        self._endpoint.settimeout(None if seconds is None else max(seconds, _MIN_SECONDS))
        # Byte by byte: stray bytes are recognized at once, without waiting until they fill a header.
        mark = b""
        while len(mark) < len(_MARK):
            mark += self._read(1)
            if not _MARK.startswith(mark):
                raise StrayBytesError
        _, number, size = _HEADER.unpack(mark + self._read(_HEADER.size - len(_MARK)))
        return Message(number, self._read(size))

    def close_on_fork(self) -> None:
        """Keep child processes from inheriting this end, and close it in forks."""
        self._endpoint.set_inheritable(False)
        os.register_at_fork(after_in_child=self._endpoint.close)

    def close(self) -> None:
        self._endpoint.close()

    def _read(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            try:
                piece = self._endpoint.recv(min(count - len(received), 1 << 20))
            except TimeoutError:
                raise
            except OSError as error:
                raise EOFError from error
            if not piece:
                raise EOFError
            received += piece
        return bytes(received)
