"""An endpoint that listens: a server in a thread, with an event loop of its own."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

import uvicorn

from ..errors import ProaError, SettingError
from .app import build_app
from .limits import Limits
from .refusals import Refusal
from .route import Desk

if TYPE_CHECKING:
    from .callers import Callers
    from .served_model import ServedModel

GRACE = 10.0
"""Seconds that requests under way get at the end."""
_START_SECONDS = 30.0
_MARGIN = 3.0
_BACKLOG = 2048


class Endpoint:
    """Serves a model to callers from the moment it is made, until it is closed. Port 0 is any that is free."""

    def __init__(
        self,
        model: ServedModel,
        callers: Callers,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self._desk = Desk(model, callers, limits or Limits())
        self._socket = _listen(host, port)
        self.host = host
        self.port = int(self._socket.getsockname()[1])
        app = build_app(self._desk, only_local_names=is_loopback(host))
        self._server = _Server(
            uvicorn.Config(
                app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, log_level="critical",
                access_log=False, server_header=False, proxy_headers=False, backlog=_BACKLOG,
            )
        )  # fmt: skip
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="proa endpoint", daemon=True)
        self._thread.start()
        if not self._server.listening.wait(_START_SECONDS) or not self.is_alive:
            self._socket.close()
            raise ProaError(f"the endpoint did not start on {host}:{self.port}")

    @property
    def base_url(self) -> str:
        """What clients of OpenAI take for their `base_url`."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/v1"

    @property
    def failure(self) -> Exception | None:
        """What the engine failed with, if it did: from then on nothing is answered."""
        return self._desk.failure

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def under_way(self) -> int:
        """How many requests are being answered."""
        return len(self._desk.under_way)

    def close(self, grace: float = 0.0) -> None:
        """Take in nothing more; give what is under way so many seconds, then cancel it. It returns soon after."""
        over = Refusal(503, "the server is shutting down")
        self._desk.under_way.refuse(over)
        if self._loop is not None and self.is_alive:
            self._loop.call_soon_threadsafe(self._end, grace, over)
        self._thread.join(grace + _MARGIN)
        self._desk.model.tokenising.shutdown(wait=False, cancel_futures=True)

    def _end(self, grace: float, over: Refusal) -> None:
        self._server.config.timeout_graceful_shutdown = math.ceil(grace) + 1
        self._server.should_exit = True
        assert self._loop is not None
        self._loop.call_later(grace, self._desk.under_way.end, over)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._server.listening.set()  # whoever waits for it sees that the thread is over

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve([self._socket])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        why = error.strerror or str(error)
        raise SettingError(
            f"nothing can listen on {host}:{port}: {why[:1].lower()}{why[1:]}; --port 0 takes a port that is free"
        ) from None
