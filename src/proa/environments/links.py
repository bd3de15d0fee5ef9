"""What connects a pool to a host: a child process, or a thread of this one for what cannot be sent to another."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from ..processes.channel import Message, MessageReader, StrayBytesError
from ..processes.child import KILL_SECONDS, Child
from ..processes.printed import STDERR, STDOUT, show
from .host import Host, HostServer, make_or_refuse
from .loops import LoopThread
from .questions import Begin, Deadlines, Question, RunAgent
from .worker import NOTICE, Setup

READY = 1
"""The number of the message that says that a host is ready; questions have higher ones."""


class Listener(Protocol):
    """Told, on the pool's loop, what comes from a host."""

    def heard(self, number: int, content: bytes) -> None: ...

    def ended(self, why: str) -> None:
        """There will be no further answer."""


class Link(Protocol):
    """A connection to one host, used on the pool's loop."""

    async def start(self, listener: Listener) -> None: ...

    def send(self, number: int, question: Question) -> None: ...

    async def end(self) -> str:
        """End the host, whatever it does; return how it ended."""


class ProcessLink:
    """To a host in a child process."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._child: Child | None = None
        self._transport: asyncio.WriteTransport | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def start(self, listener: Listener) -> None:
        self._child = Child("proa.environments.worker")
        self._transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: _Conversation(listener), sock=self._child.endpoint
        )
        self._transport.write(Message(READY, pickle.dumps(self._setup)).encoded())

    def send(self, number: int, question: Question) -> None:
        content = pickle.dumps(question)  # which may fail, before anything is sent
        assert self._transport is not None
        self._transport.write(Message(number, content).encoded())

    async def end(self) -> str:
        if self._transport is not None:
            self._transport.abort()
        if self._child is None:
            return "never started"
        self._child.kill()
        loop = asyncio.get_running_loop()
        until = loop.time() + KILL_SECONDS
        while self._child.is_running() and loop.time() < until:
            await asyncio.sleep(0.002)
        return self._child.wait(0)


class _Conversation(asyncio.Protocol):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._reader = MessageReader()

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._reader.feed(data)
        except StrayBytesError:
            self._listener.ended(
                "sent something that is no answer (does it write to file descriptors that are not its own?)"
            )
            return
        for message in messages:
            if message.number in (STDOUT, STDERR):
                show(message)
            else:
                self._listener.heard(*message)

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.ended("")


class ThreadLink:
    """To a host in a thread of this process: the same deadlines, but what hangs stays behind when it is ended."""

    def __init__(self, load: Callable[[], Callable[..., Any]], name: str, deadlines: Deadlines) -> None:
        self._load, self._name, self._deadlines = load, name, deadlines
        self._thread: LoopThread | None = None

    async def start(self, listener: Listener) -> None:
        own_loop = asyncio.get_running_loop()
        self._thread = LoopThread(f"environments of {self._name}")

        def send(number: int, content: bytes) -> None:
            if not own_loop.is_closed():
                own_loop.call_soon_threadsafe(listener.heard, number, content)

        self._thread.call_soon(self._serve, send)

    def _serve(self, send: Callable[[int, bytes], None]) -> None:
        host = Host(
            make_or_refuse(self._load, self._name), self._name, self._deadlines, _ThreadAlarm(send), memory_limit=None
        )
        self._server = HostServer(host, send)
        send(READY, b"{}")

    def send(self, number: int, question: Question) -> None:
        if isinstance(question, Begin | RunAgent):
            question = replace(question, row=_own_copy(question.row))
        assert self._thread is not None
        self._thread.call_soon(lambda: self._server.receive(number, question))

    async def end(self) -> str:
        loop = asyncio.get_running_loop()
        until = loop.time() + 0.5
        while self._thread is not None and not self._thread.stop(0.0):
            if loop.time() > until:
                return "left behind"
            await asyncio.sleep(0.002)
        return "ended"


class _ThreadAlarm:
    def __init__(self, send: Callable[[int, bytes], None]) -> None:
        self._send = send

    def stuck(self) -> None:
        self._send(NOTICE, b'{"condemned": true}')

    def exhausted(self) -> None:
        """This process has no limit of its own."""

    def more_threads(self) -> None:
        """This process has no limit of its own."""


def _own_copy(row: Any) -> Any:
    try:
        return copy.deepcopy(row)
    except Exception:  # something in it cannot be copied
        return dict(row)
