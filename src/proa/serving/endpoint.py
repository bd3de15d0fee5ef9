"""An endpoint that listens: a server in a thread, with an event loop of its own."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..errors import ProaError, SettingError

try:
    import uvicorn

    from .app import build_app
except ModuleNotFoundError as error:
    if error.name not in ("starlette", "uvicorn"):
        raise
    raise SettingError(f"serving needs the package {error.name}: pip install 'proa[serve]'") from None

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
    """Serves a model to callers from the moment it is made, until it is closed."""

    def __init__(
        self,
        model: ServedModel,
        callers: Callers,
        *,
        address: socket.socket | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`address` is where it listens, as `bind` gives it; by default a free port that only this machine reaches."""
        self._desk = Desk(model, callers, limits or Limits())
        self._socket = address or bind("127.0.0.1", 0)
        self.host, self.port = self._socket.getsockname()[:2]
        app = build_app(self._desk, only_local_names=is_loopback(self.host))
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
            raise ProaError(f"the endpoint did not start on {self.host}:{self.port}")

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
        self._desk.tokenising.shutdown(wait=False, cancel_futures=True)

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


def bind(host: str, port: int) -> socket.socket:
    """An address for an endpoint: nobody else has it from now on. Port 0 is any that is free."""
    if not 0 <= port < 1 << 16:
        raise SettingError(f"there is no port {port}: ports are 1 to 65535, and 0 is any that is free")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        why = error.strerror or str(error)
        raise SettingError(
            f"{host}:{port} cannot be used: {why[:1].lower()}{why[1:]}; --port 0 takes a port that is free"
        ) from None
    return bound
