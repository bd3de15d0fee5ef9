"""The endpoint as an ASGI application: its routes, and who is let in at all."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path

from .chat import ChatAsked
from .completions import CompletionAsked
from .refusals import Refusal
from .reply import Reply
from .route import Desk, Route, bearer
from .token_route import TokensAsked

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def build_app(desk: Desk, *, only_local_names: bool = True) -> ASGIApp:
    """All routes. No pages, no documentation, no headers that would let pages of other sites read answers."""

    async def models(request: Request) -> Response:
        return _admitted(request) or JSONResponse({"object": "list", "data": [desk.model.card]})

    async def one_model(request: Request) -> Response:
        return _admitted(request) or JSONResponse(desk.model.card)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "failed"}, 503) if desk.failure is not None else JSONResponse({"status": "ok"})

    def _admitted(request: Request) -> Response | None:
        """The answer to whoever is not let in."""
        try:
            desk.callers.find(bearer(request))
            desk.model.check_name(request.path_params.get("name"))
        except Refusal as refusal:
            return JSONResponse(refusal.content, refusal.status, refusal.headers)
        return None

    async def not_there(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        said = f"there is no {request.method} {request.url.path} here: there are {', '.join(sorted(known))}"
        return JSONResponse(Refusal(error.status_code, said).content, error.status_code, error.headers)

    paths = [
        Path("/health", health),
        Path("/v1/models", models),
        Path("/v1/models/{name:path}", one_model),
        Path("/v1/chat/completions", Route(desk, ChatAsked), methods=["POST"]),
        Path("/v1/completions", Route(desk, CompletionAsked), methods=["POST"]),
        Path("/inference/v1/generate", Route(desk, TokensAsked), methods=["POST"]),
    ]
    known = {path.path for path in paths if "{" not in path.path}
    app = Starlette(routes=paths, exception_handlers={HTTPException: not_there})
    return LocalNames(app) if only_local_names else app


class LocalNames:
    """Answers only to requests for this machine by its own names: a page of another site whose name was made to point
    here is refused."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_local(Request(scope).headers.get("host", "")):
            refusal = Refusal(403, "the Host header names another machine: this server answers on loopback only")
            await Reply(send).refuse(refusal)
            return
        await self._app(scope, receive, send)


def is_local(host: str) -> bool:
    """Whether a Host header means this machine.

    >>> [is_local(host) for host in ("127.0.0.1:8000", "localhost", "[::1]:80", "a.example", "127.0.0.1.a.example")]
    [True, True, True, False, False]
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.removeprefix("[").removesuffix("]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
