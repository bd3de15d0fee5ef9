"""Threads for the sync functions of environments: a trajectory's calls are made in a thread of its own.

What it opened in one call (a database, a browser) can be used in the next: some libraries allow that in the same thread
only. Threads that miss the deadline are interrupted, as far as Python can: an exception is raised in them, which ends
loops, and whatever comes back from a wait.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias

from ..processes.printed import PrintedText
from .failures import Raised

MOST_THREADS = 512
"""Of one worker. Beyond it trajectories share: a call takes the thread that has been idle for longest, or waits."""
UNWIND_SECONDS = 1.0
"""How long an interrupted thread may take to end before it counts as stuck."""

Function: TypeAlias = Callable[[], Any]
Done: TypeAlias = Callable[[Any, BaseException | None], None]


class Interrupted(BaseException):
    """Raised in a thread that has passed its deadline."""


class CallThread:
    """A thread that makes calls, one at a time; a daemon, for Python cannot end one that is stuck."""

    _numbers = itertools.count(1)

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.is_busy = False
        self._calls: SimpleQueue[tuple[Function, Done] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._serve, name=f"environment {next(self._numbers)}", daemon=True)
        self._thread.start()

    def call(self, function: Function, done: Done) -> None:
        """Make a call; `done` is called on the loop, with what was returned or raised."""
        self.is_busy = True
        self._calls.put((function, done))

    def end(self) -> None:
        """End it once it is idle."""
        self._calls.put(None)

    def interrupt(self) -> None:
        """Raise an exception in it, which it notices when it next runs Python code."""
        ident = self._thread.ident
        if ident is not None and self._thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Interrupted))

    def _serve(self) -> None:
        done: Done | None = None
        with suppress(Interrupted, RuntimeError):  # interrupted just after its call; the loop is closed: nobody waits
            while (given := self._calls.get()) is not None:
                function, done = given
                returned, error = _outcome(function)
                self._loop.call_soon_threadsafe(done, returned, error)
                del given, function, returned, error  # nothing is kept alive until the next call
                done = None
        if done is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(done, None, Interrupted())


def _outcome(function: Function) -> tuple[Any, BaseException | None]:
    own_id = os.getpid()
    returned, error = None, None
    try:
        returned = function()
    except BaseException as caught:
        error = caught
    if os.getpid() != own_id:  # it forked, and both processes returned: only one may answer
        os._exit(0)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, PrintedText):
            stream.flush()  # what it printed is there with its answer
    return returned, error


class CallThreads:
    """The threads of one loop, by owner (a trajectory)."""

    def __init__(self, on_stuck: Callable[[], None], on_more: Callable[[], None]) -> None:
        self._on_stuck, self._on_more = on_stuck, on_more
        self._owners: set[int] = set()
        self._idle: dict[int, list[CallThread]] = {}  # by owner; those idle for longest first
        self._count = 0
        self._most = 0  # that there ever were at once
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, owner: int, function: Function, seconds: float) -> Any:
        """What a function returns, called in a thread, or `Raised`; TimeoutError when the deadline has passed, which
        counts from when there is a thread. If the caller stops waiting, the call may still last until then."""
        self._owners.add(owner)
        thread = await self._take(owner)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        is_late = False

        def done(returned: Any, error: BaseException | None) -> None:
            if not thread.is_busy:
                return  # interrupted while it said so
            late.cancel()
            thread.is_busy = False
            self._give_back(thread, was_late=is_late)
            if answer.done():
                return
            if error is None:
                answer.set_result(returned)
            else:
                answer.set_exception(Raised(error))

        def pass_deadline() -> None:
            nonlocal is_late
            is_late = True
            thread.interrupt()
            loop.call_later(UNWIND_SECONDS, lambda: self._on_stuck() if thread.is_busy else None)
            if not answer.done():
                answer.set_exception(TimeoutError())

        late = loop.call_later(seconds, pass_deadline)
        thread.call(function, done)
        return await answer

    def forget(self, owner: int) -> None:
        """End the threads of an owner that makes no more calls, those still at work when they are done."""
        self._owners.discard(owner)
        for thread in self._idle.pop(owner, []):
            self._end(thread)

    async def _take(self, owner: int) -> CallThread:
        while True:
            if owner in self._idle:
                return self._taken_from(owner, newest=True)
            if self._count < MOST_THREADS and (thread := self._started(owner)):
                return thread
            if self._idle:
                thread = self._taken_from(next(iter(self._idle)), newest=False)
                thread.owner = owner
                return thread
            free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(free)
            try:
                await free
            except asyncio.CancelledError:
                if not free.cancelled():
                    self._wake()  # it was for this one; for the next, then
                raise

    def _started(self, owner: int) -> CallThread | None:
        if self._count == self._most:
            self._most += 1
            self._on_more()
        try:
            thread = CallThread(owner)
        except RuntimeError:  # a limit of the system's
            if not self._count:
                raise
            return None
        self._count += 1
        return thread

    def _taken_from(self, owner: int, *, newest: bool) -> CallThread:
        threads = self._idle[owner]
        thread = threads.pop(-1 if newest else 0)
        if not threads:
            del self._idle[owner]
        return thread

    def _give_back(self, thread: CallThread, *, was_late: bool) -> None:
        if was_late or thread.owner not in self._owners:  # the interruption may still come
            self._end(thread)
        else:
            self._idle.setdefault(thread.owner, []).append(thread)
            self._wake()

    def _end(self, thread: CallThread) -> None:
        thread.end()
        self._count -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            free = self._waiting.popleft()
            if not free.done():
                free.set_result(None)
                return
