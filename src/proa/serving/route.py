"""One route that completes: from the bytes of a request to those of its answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from ..actors.waiting import ClosedError
from ..errors import SettingError
from ..rollouts.engine_stream import WeightsGoneError
from ..visible import single_line
from .answer import Answer
from .asked import Asked, read_asked
from .generation import EngineFailedError
from .limits import Gate, Limits, UnderWay
from .refusals import Refusal
from .reply import Reply

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from .callers import Caller, Callers
    from .served_model import ServedModel

log = logging.getLogger("proa.serving")

T = TypeVar("T")


class Desk:
    """What the routes of an endpoint share: the model, who may ask, and what is under way."""

    def __init__(self, model: ServedModel, callers: Callers, limits: Limits) -> None:
        self.model = model
        self.callers = callers
        self.limits = limits
        self.gate = Gate(limits.sequences)
        self.under_way = UnderWay()
        self.tokenising = ThreadPoolExecutor(1, thread_name_prefix="proa tokens")
        """Where prompts are rendered and tokenised, one after the other; that may take longer than others can wait."""
        self.failure: Exception | None = None
        """What the engine failed with, if it did: nothing is answered from then on."""


class Route:
    """An ASGI application for the requests of one path. A client that leaves cancels what it asked for."""

    def __init__(self, desk: Desk, kind: type[Asked]) -> None:
        self._desk = desk
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        desk, request, reply = self._desk, Request(scope, receive), Reply(send)
        ends_at = time.monotonic() + desk.limits.seconds
        try:
            caller = desk.callers.find(bearer(request))
            with desk.gate.places(1):
                raw = await asyncio.wait_for(self._body(request), desk.limits.seconds)
                asked = read_asked(self._kind, raw)
                desk.model.check_name(asked.model)
                with desk.gate.places(asked.count - 1, held=1):
                    answer = await self._while_present(self._answer(asked, caller, reply), caller, receive, ends_at)
            # Its places are free before the client knows, who may ask again at once.
            await (reply.end_stream() if answer is None else reply.json(answer))
        except ClientDisconnect:
            return
        except Exception as error:
            refusal = self._as_refusal(error)
            log.warning("%s %s: %s", request.url.path, refusal.status, single_line(str(refusal)))
            await reply.refuse(refusal)

    async def _body(self, request: Request) -> bytes:
        most = self._desk.limits.body_bytes
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # pages of other sites may send other types without asking
            raise Refusal(415, "send the body as JSON, with the header Content-Type: application/json")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise Refusal(413, f"the body has more than {most:,} bytes: send less at a time", "body_too_large")
        return bytes(body)

    async def _answer(self, asked: Asked, caller: Caller, reply: Reply) -> dict[str, Any] | None:
        """What is to be answered; None where all but the end of it has been streamed."""
        model = self._desk.model
        prompts = await asyncio.get_running_loop().run_in_executor(
            self._desk.tokenising, asked.prompts, caller.chat_prompt, model
        )
        with caller.planned(prompts, asked, model) as plans:
            answer = Answer(asked, plans, caller, model)
            if not asked.stream:
                return await answer.whole()
            async with contextlib.aclosing(answer.chunks()) as chunks:
                async for chunk in chunks:
                    await reply.event(chunk)
            return None

    async def _while_present(self, work: Coroutine[Any, Any, T], caller: Caller, receive: Receive, ends_at: float) -> T:
        """What comes of work, unless the client leaves, its time is over, or somebody ends it."""
        working = asyncio.create_task(work)
        leaving = asyncio.create_task(_disconnect(receive))
        try:
            with self._desk.under_way.holding(working), caller.under_way.holding(working):
                await asyncio.wait(
                    {working, leaving}, timeout=ends_at - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            has_left, is_late = leaving.done(), not working.done()
            leaving.cancel()
            working.cancel()
            await asyncio.wait({working, leaving})
        if not working.cancelled():
            return working.result()
        if has_left:
            raise ClientDisconnect
        if is_late:
            raise Refusal(504, f"this took more than {self._desk.limits.seconds:g} s: ask for less", "deadline")
        raise caller.under_way.over or self._desk.under_way.over or Refusal(503, "the request was cancelled")

    def _as_refusal(self, error: Exception) -> Refusal:
        if isinstance(error, Refusal):
            return error
        if isinstance(error, SettingError):  # of a template, or of the engine
            return Refusal(400, str(error), "invalid_value")
        if isinstance(error, TimeoutError):
            return Refusal(408, "the body did not come in time", "deadline")
        if isinstance(error, ClosedError | WeightsGoneError):
            return Refusal(503, str(error), retry_after=1)
        if isinstance(error, EngineFailedError):
            self._desk.failure = self._desk.failure or error
            return Refusal(500, str(error), "engine_failed")
        log.error("this should not have happened", exc_info=error)
        return Refusal(500, f"the server failed: {type(error).__name__}: {error}", "server_failed")


def bearer(request: Request) -> str:
    """The key that a request brings; empty without one."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
