"""Whole messages over a socket, with a deadline on both sending and receiving."""

from __future__ import annotations

import socket

_SIZE_BYTES = 8
_SHORTEST = 0.001  # seconds; 0 would mean "do not wait at all"


class Channel:
    """One end of a connection between two processes; EOFError when the other end is gone."""

    def __init__(self, endpoint: socket.socket) -> None:
        self._endpoint = endpoint

    def send(self, message: bytes, seconds: float | None = None) -> None:
        """Send a message; TimeoutError if the other side does not take it in time."""
        self._endpoint.settimeout(None if seconds is None else max(seconds, _SHORTEST))
        try:
            self._endpoint.sendall(len(message).to_bytes(_SIZE_BYTES, "big"))
            self._endpoint.sendall(message)
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError from error

    def receive(self, seconds: float | None = None) -> bytes:
        """The next message; TimeoutError if nothing comes in time."""
        self._endpoint.settimeout(None if seconds is None else max(seconds, _SHORTEST))
        return self._exactly(int.from_bytes(self._exactly(_SIZE_BYTES), "big"))

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
