"""The main loop of a worker process: it hosts environments and answers its parent until that is gone.

Answers are JSON: whatever runs here, a model's code too, nothing that it sends can run in the parent.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import json
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..processes.channel import Channel, Message, StrayBytesError
from ..processes.printed import STDERR, STDOUT, PrintedText
from .host import Host, HostServer, make_or_refuse
from .loops import OwnProcessSelector, run_until_stopped
from .questions import Deadlines, Ping, failed
from .text import raised
from .threads import MOST_THREADS

NOTICE = 2**63 + 1
"""The number of messages that answer no question: `condemned`, or `last_words`."""
START_SECONDS = 120.0
"""How long a worker may take to start, mostly to import the user's modules."""
PRINTED_PER_SECOND = 100_000.0
"""Characters that a worker may print, over a while: a tool may print without end."""


_BEAT_SECONDS = 1.0
_MMAP_THRESHOLD = -3
"""glibc's M_MMAP_THRESHOLD: blocks from this size on are mapped for themselves. To set it also stops its growth."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is told first."""

    recipe: bytes
    """A pickle of what has `load()`, which gives the maker of environments."""
    name: str
    deadlines: Deadlines
    memory_limit: int | None
    """In bytes."""
    patience: float
    """Of its own with itself: after a longer silence the worker ends itself, unless a `Ping` has another number."""


def main(descriptor: int) -> None:
    """Serve the parent on the socket with this file descriptor."""
    channel = Channel(socket.socket(fileno=descriptor))
    channel.close_on_fork()
    streams = (STDOUT, sys.stdout), (STDERR, sys.stderr)
    printed = [PrintedText(channel, number, one, most_per_second=PRINTED_PER_SECOND) for number, one in streams]
    sys.stdout, sys.stderr = printed  # as much of a stream as functions need
    with suppress(EOFError):  # the parent is gone
        _end_after(START_SECONDS)
        number, given = channel.receive()
        setup: Setup = pickle.loads(given)  # noqa: S301 - from our own parent
        limit_memory(setup.memory_limit)
        make = make_or_refuse(lambda: pickle.loads(setup.recipe).load(), setup.name)  # noqa: S301 - from our own parent
        for stream in printed:
            stream.flush()
        channel.send(Message(number, b"{}"))
        _Worker(channel, printed, setup, make).serve()
    for stream in printed:
        stream.flush_all()
    os._exit(0)  # the user's threads must not keep this process alive


def limit_memory(most: int | None) -> None:
    """Let allocations beyond so many bytes fail, where the platform can: better than to have the kernel choose whom to
    end. What counts is what the process may write to, but for the stacks of its threads."""
    if most is None:
        return
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        _give_back_what_is_freed()


def _give_back_what_is_freed() -> None:
    """Have glibc return large blocks to the system as soon as they are freed. It would keep more and more of them for
    later, broken into pieces, and what a greedy tool has freed would count against its neighbours."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 2**20)


class _StackRoom:
    """Raises the limit of memory by the stack of each thread: the system counts all of it (8 MiB), though next to
    nothing is used, and five hundred trajectories with a thread each would have none left."""

    _USUAL = 8 << 20

    def __init__(self, is_limited: bool) -> None:
        self._is_limited = is_limited
        self._lock = threading.Lock()

    def add(self) -> None:
        if not self._is_limited:
            return
        with self._lock, suppress(ImportError, OSError, ValueError):
            import resource

            size, _ = resource.getrlimit(resource.RLIMIT_STACK)
            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            more = soft + (self._USUAL if size == resource.RLIM_INFINITY else size)
            resource.setrlimit(
                resource.RLIMIT_DATA, (more if hard == resource.RLIM_INFINITY else min(more, hard), hard)
            )


class _Worker:
    def __init__(self, channel: Channel, printed: list[PrintedText], setup: Setup, make: Callable[..., Any]) -> None:
        self._channel, self._printed, self._setup = channel, printed, setup
        self._own_id = os.getpid()
        self._loop = asyncio.SelectorEventLoop(OwnProcessSelector())
        self._stack_room = _StackRoom(setup.memory_limit is not None)
        self._host = Host(make, setup.name, setup.deadlines, self, setup.memory_limit)
        self._server = HostServer(self._host, self._send)
        self._patience = setup.patience

    def serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(self._handle)
        self._loop.add_reader(self._channel.fileno(), self._receive)
        self._loop.call_soon(self._receive)  # what came before there was a loop
        # With few threads, some that hang would hold up all.
        self._loop.set_default_executor(ThreadPoolExecutor(MOST_THREADS, initializer=self._stack_room.add))
        self._beat()
        run_until_stopped(self._loop)

    def _beat(self) -> None:
        """Go on for another while: as long as this loop turns, it sees whether the parent is there."""
        _end_after(self._patience)
        self._loop.call_later(_BEAT_SECONDS, self._beat)

    def stuck(self) -> None:
        self._send(NOTICE, b'{"condemned": true}')

    def exhausted(self) -> None:
        limit = (self._setup.memory_limit or 0) / 2**30
        words = f"its memory reached the limit of {limit:g} GiB (memory_gib)"
        self._send(NOTICE, json.dumps({"last_words": words}).encode())
        os._exit(1)

    def more_threads(self) -> None:
        self._stack_room.add()

    def _receive(self) -> None:
        try:
            arrived = self._channel.arrived()
        except (EOFError, StrayBytesError):  # the parent is gone
            self._loop.stop()
            return
        for message in arrived:
            try:
                question = pickle.loads(message.content)  # noqa: S301 - from our own parent
            except Exception as error:  # reading it runs the user's code
                reason = f"a row or message cannot be read in the worker process: {raised(error)}"
                self._send(message.number, json.dumps(failed(reason)).encode())
                continue
            self._server.receive(message.number, question)
            if isinstance(question, Ping):
                self._patience = question.patience

    def _send(self, number: int, content: bytes) -> None:
        if os.getpid() != self._own_id:  # a function forked: only its parent may answer
            os._exit(0)
        for stream in self._printed:
            stream.flush()
        with suppress(EOFError):
            self._channel.send(Message(number, content))

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What a callback raised, of the loop or of the user's."""
        if isinstance(context.get("exception"), MemoryError):
            self.exhausted()
        loop.default_exception_handler(context)


def _end_after(seconds: float) -> None:
    """End this process if it gives no sign of life for so long: its parent, which would have ended it, is gone. This
    works even while a hang (a regular expression) holds the GIL, where no Python thread can run."""
    faulthandler.dump_traceback_later(seconds, exit=True)
