"""The reply to one request: one JSON object, or a stream of them as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Message, Send

    from .refusals import Refusal

_LAST_WORDS = 1.0
"""Seconds in which a client must take in an error."""


class Reply:
    """Knows how far it is, so that an error can still be told in the form that the client reads."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_begun = False
        self._is_over = False

    async def json(self, content: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = _encoded(content)
        sent = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        await self._begin(status, sent)
        await self._body(body, more=False)

    async def event(self, content: dict[str, Any]) -> None:
        """One more event of a stream, which begins with the first. It waits while the client does not read."""
        if not self._is_begun:
            await self._begin(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})
        await self._body(b"data: " + _encoded(content) + b"\n\n")

    async def end_stream(self) -> None:
        await self._body(b"data: [DONE]\n\n", more=False)

    async def refuse(self, refusal: Refusal) -> None:
        """Say what is wrong; where a stream has begun, as its last event."""
        if self._is_over:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                if self._is_begun:
                    await self._body(b"data: " + _encoded(refusal.content) + b"\n\n", more=False)
                else:
                    # The rest of its body is not read, so nothing else can come over this connection.
                    await self.json(refusal.content, refusal.status, refusal.headers | {"connection": "close"})

    async def _begin(self, status: int, headers: dict[str, str]) -> None:
        self._is_begun = True
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def _body(self, body: bytes, *, more: bool = True) -> None:
        message: Message = {"type": "http.response.body", "body": body, "more_body": more}
        await self._send(message)
        self._is_over = not more


def _encoded(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
