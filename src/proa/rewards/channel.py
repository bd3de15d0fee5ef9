"""Whole, numbered messages over a socket, with a deadline on both sending and receiving."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

_HEADER = struct.Struct(">8sQQ")
_MARK = b"proa \x00\xf7\n"  # begins every message: bytes that a stray print or log line does not begin with
_SHORTEST = 0.001  # seconds; 0 would mean "do not wait at all"


class StrayBytesError(Exception):
    """Somebody else wrote into the connection: what comes is not a message."""


class Message(NamedTuple):
    """A question and its answer have the same number, so that no answer passes for that of another question."""

    number: int
    content: bytes


class Channel:
    """One end of a connection between two processes; EOFError when the other end is gone."""

    def __init__(self, endpoint: socket.socket) -> None:
        self._endpoint = endpoint

    def send(self, message: Message, seconds: float | None = None) -> None:
        """Send a message; TimeoutError if the other side does not take it in time."""
        self._endpoint.settimeout(None if seconds is None else max(seconds, _SHORTEST))
        try:
            self._endpoint.sendall(_HEADER.pack(_MARK, message.number, len(message.content)))
            self._endpoint.sendall(message.content)
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError from error

    def receive(self, seconds: float | None = None) -> Message:
        """The next message; TimeoutError if nothing comes in time, StrayBytesError if it is something else."""
        self._endpoint.settimeout(None if seconds is None else max(seconds, _SHORTEST))
        # Piece by piece: a few stray bytes are known by their first, not waited on until they fill a header.
        mark = b""
        while len(mark) < len(_MARK):
            mark += self._exactly(1)
            if not _MARK.startswith(mark):
                raise StrayBytesError
        _, number, size = _HEADER.unpack(mark + self._exactly(_HEADER.size - len(_MARK)))
        return Message(number, self._exactly(size))

    def keep_to_this_process(self) -> None:
        """Let neither commands that this process starts have this end, nor what is forked from it."""
        self._endpoint.set_inheritable(False)
        os.register_at_fork(after_in_child=self._endpoint.close)

    def close(self) -> None:
        self._endpoint.close()

    def _exactly(self, count: int) -> bytes:
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
