"""The HTTP interface of a vLLM server."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ...errors import ProaError, SettingError

_SHORT_SECONDS = 10.0
"""How long the server may take to answer what it need not compute for."""


class ServerGoneError(ProaError):
    """The server does not answer, or ended a connection."""


class ServerError(ProaError):
    """The server answered that it cannot do it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    @property
    def is_temporary(self) -> bool:
        """Whether the same may be asked again later."""
        return self.status >= 500 or self.status in (408, 429)

    def __str__(self) -> str:
        return f"{self.message} (HTTP {self.status})"


class Server:
    """Where it is, and with which key it is asked."""

    def __init__(self, address: str, api_key: str, patience: float) -> None:
        self.address = address.rstrip("/")
        self._parts = _parts(self.address)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._patience = patience

    def is_there(self) -> bool:
        """Whether it answers and its engine is well."""
        with contextlib.suppress(ServerGoneError, ServerError):
            self.ask("GET", "/health")
            return True
        return False

    def ask(self, method: str, path: str, content: Any = None, *, seconds: float = _SHORT_SECONDS) -> Any:
        """What it answers; `seconds` is for work that takes longer."""
        connection = self.connect(seconds)
        try:
            response = self.send(connection, method, path, content)
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerGoneError(f"{self.address} does not answer {path}: {error}") from error
        finally:
            connection.close()
        try:
            return json.loads(answer)
        except ValueError:
            return answer.decode(errors="replace")  # some routes answer in words, and /health with nothing

    def connect(self, seconds: float | None = None) -> http.client.HTTPConnection:
        """A connection that is not open yet."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.netloc, timeout=self._patience if seconds is None else seconds)

    def send(
        self, connection: http.client.HTTPConnection, method: str, path: str, content: Any
    ) -> http.client.HTTPResponse:
        """The response, of which nothing is read yet; a ServerError if it is one."""
        body = None if content is None else json.dumps(content)
        try:
            connection.request(method, self._parts.path + path, body, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ServerGoneError(f"{self.address} does not answer {path}: {error}") from error
        if response.status >= 400:
            raise ServerError(response.status, _message(response.read()))
        return response


def _parts(address: str) -> Any:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingError(f"engine.address is {address!r}: write it like http://127.0.0.1:8000")
    return parts


def _message(answer: bytes) -> str:
    """What an error says, in whichever of vLLM's forms."""
    try:
        content = json.loads(answer)
    except ValueError:
        return " ".join(answer.decode(errors="replace").split())[:300] or "without a word"
    error = content.get("error", content.get("detail", content)) if isinstance(content, dict) else content
    return str(error.get("message", error) if isinstance(error, dict) else error)[:500]


@dataclass(frozen=True, slots=True)
class Event:
    """What came of a stream."""

    stream: Stream
    choice: Mapping[str, Any] | None = None
    """Of vLLM's answer; None at the end of the stream, of which nothing comes any more."""
    error: ProaError | None = None
    """Why it ended early."""


class Stream(threading.Thread):
    """One request at the server. It reads what comes into a queue, until the end or `close`."""

    def __init__(self, server: Server, name: str, content: Mapping[str, Any], events: queue.SimpleQueue[Event]) -> None:
        super().__init__(name=f"vllm request {name}", daemon=True)
        self.request_id = name
        self._server = server
        self._content = content
        self._events = events
        self._connection = server.connect()
        self._is_closed = False
        self.start()

    def close(self) -> None:
        """Have the server drop the request: it does when its connection ends."""
        self._is_closed = True
        with contextlib.suppress(OSError, AttributeError):  # not connected yet, or not any more
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        error: ProaError | None = None
        try:
            for choice in self._choices():
                if self._is_closed:
                    return
                self._events.put(Event(self, choice))
        except ProaError as problem:
            error = problem
        except Exception as problem:  # of a connection that ended in the middle of something
            error = ServerGoneError(f"{self._server.address} ended a connection: {problem}")
        finally:
            self._connection.close()
        if not self._is_closed:
            self._events.put(Event(self, None, error))

    def _choices(self) -> Iterator[Mapping[str, Any]]:
        response = self._server.send(self._connection, "POST", "/inference/v1/generate", self._content)
        if self._is_closed:
            return
        for line in response:
            if not line.startswith(b"data:"):
                continue
            said = line[len(b"data:") :].strip()
            if said == b"[DONE]":
                return
            content = json.loads(said)
            if "error" in content:
                raise ServerError(int(content["error"].get("code") or 500), _message(said))
            yield from content["choices"]
        raise ServerGoneError(f"{self._server.address} ended a connection before its answer was whole")
