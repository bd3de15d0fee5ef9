"""The event loop for hooks, so that a plain hook may call `asyncio.create_task(...)`.

Training is synchronous, so the loop runs for a moment at each step boundary, and is drained with a deadline before the
run ends. Each thread that fires moments has its own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from asyncio import _get_running_loop, _set_running_loop  # made for code that runs loops itself, as here
from collections.abc import Iterator
from threading import get_ident
from time import monotonic
from typing import Any

from .failures import Failures
from .listeners import Function, Listener

TURN_SECONDS = 0.0005
TURN_ITERATIONS = 16
MIN_ITERATIONS = 3  # enough for a task that awaits nothing, however busy the machine
BEGIN_SECONDS = 0.1
"""How long tasks started at the beginning of an experiment or a run may run before it continues; they are finished at
the boundaries between steps."""
CANCEL_SECONDS = 1.0
"""How long tasks that missed the deadline may take to clean up after being cancelled."""


class BackgroundTasks:
    """The tasks that the hooks of one manager started."""

    def __init__(self, failures: Failures, drain_seconds: float) -> None:
        self._failures = failures
        self._drain_seconds = drain_seconds
        self._loops: dict[int, _ThreadLoop] = {}
        weakref.finalize(self, _close_loops, self._loops)  # a manager dropped during a run leaves no socket open

    def wrap(self, listener: Listener) -> Function:
        """The listener's call, with a loop so that `asyncio.create_task` works in it and its tasks are tracked."""

        def call(*args: Any, **kwargs: Any) -> object:
            loop = self._loops.get(get_ident())
            if loop is None:
                loop = self._loops[get_ident()] = _ThreadLoop()
            with loop.current(listener):
                return listener.call(*args, **kwargs)

        return call

    def turn(self, error: BaseException | None, subject: Any) -> BaseException | None:
        """Run tasks briefly. Returns the error to raise, as `Failures.judge` does."""
        loop = self._loops.get(get_ident())
        if loop is None or not loop.owners:
            return error
        loop.turn()
        return self._settle(loop, error, subject)

    def begin(self, error: BaseException | None, subject: Any) -> BaseException | None:
        """Run tasks until they are done, at most for `BEGIN_SECONDS`."""
        loop = self._loops.get(get_ident())
        if loop is None or not loop.owners:
            return error
        loop.run_for(BEGIN_SECONDS)
        return self._settle(loop, error, subject)

    def drain(self, error: BaseException | None, subject: Any) -> BaseException | None:
        """Finish all tasks, or cancel them at the deadline, and close the loop."""
        loop = self._loops.pop(get_ident(), None)
        if loop is None:
            return error
        try:
            loop.drain(self._drain_seconds)
            return self._settle(loop, error, subject)
        finally:
            loop.close()

    def _settle(self, loop: _ThreadLoop, error: BaseException | None, subject: Any) -> BaseException | None:
        while loop.failures:
            listener, raised = loop.failures.pop(0)
            error = self._failures.judge(listener, raised, error, subject, in_task=True)
        return error


class _ThreadLoop:
    """One thread's event loop, and which listener each of its tasks belongs to."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(self._adopt)
        self.owners: dict[asyncio.Future[Any], Listener] = {}
        """Every unfinished task, with the listener whose hook, or whose task, started it."""
        self._roots: set[asyncio.Future[Any]] = set()
        self._failed_children: list[tuple[Listener, asyncio.Future[Any]]] = []
        self.failures: list[tuple[Listener, BaseException]] = []
        self._listener: Listener | None = None

    @contextlib.contextmanager
    def current(self, listener: Listener) -> Iterator[None]:
        outer_loop, outer_listener = _get_running_loop(), self._listener
        _set_running_loop(self.loop)
        self._listener = listener
        try:
            yield
        finally:
            self._listener = outer_listener
            _set_running_loop(outer_loop)

    def turn(self) -> None:
        until = monotonic() + TURN_SECONDS
        with _suspended_loop():
            for done in range(1, TURN_ITERATIONS + 1):
                stop = self.loop.call_soon(self.loop.stop)
                try:
                    self.loop.run_forever()
                finally:
                    stop.cancel()  # after an interrupt in a task it would end the next run of the loop
                if not self.owners or (done >= MIN_ITERATIONS and monotonic() > until):
                    return

    def run_for(self, seconds: float) -> None:
        self.turn()  # a few rounds at least, however busy the machine
        with _suspended_loop():
            self._run_until_idle(seconds)

    def drain(self, seconds: float) -> None:
        with _suspended_loop():
            self._run_until_idle(seconds)
            late = [(task, listener) for task, listener in self.owners.items() if task in self._roots]
            for task in list(self.owners):
                task.cancel()
            self._run_until_idle(CANCEL_SECONDS)
        for listener, child in self._failed_children:
            if getattr(child, "_log_traceback", False):  # nobody awaited it and handled its failure
                self.failures.append((listener, child.exception() or AssertionError("it failed")))
        self._failed_children.clear()
        for task, listener in late:
            name = task.get_name() if isinstance(task, asyncio.Task) else repr(task)
            self.failures.append((listener, TimeoutError(f"background task {name} was not done after {seconds:g} s")))

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.close()

    def _run_until_idle(self, seconds: float) -> None:
        until = monotonic() + seconds
        while self.owners and (left := until - monotonic()) > 0:  # a task may start another
            # wait() itself becomes a task of this loop: it has no listener and is not tracked
            self.loop.run_until_complete(asyncio.wait(list(self.owners), timeout=left))

    def _adopt(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Future[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **kwargs)
        parent = asyncio.current_task(loop) if _get_running_loop() is loop else None
        listener = self.owners.get(parent) if parent is not None else self._listener
        if listener is not None:
            self.owners[task] = listener
            if parent is None:
                self._roots.add(task)
            task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Future[Any]) -> None:
        listener = self.owners.pop(task)
        root = task in self._roots
        self._roots.discard(task)
        if task.cancelled():
            return
        if not root:
            if getattr(task, "_exception", None) is not None:  # not `exception()`, which would mark it as handled
                self._failed_children.append((listener, task))
            return
        raised = task.exception()
        if raised is None:
            listener.task_failures_in_a_row = 0
        elif isinstance(raised, Exception):  # an interrupt has come out of the running loop already
            self.failures.append((listener, raised))


@contextlib.contextmanager
def _suspended_loop() -> Iterator[None]:
    """Training may be called from a running loop (a notebook); ours can still run inside it."""
    outer = _get_running_loop()
    _set_running_loop(None)
    try:
        yield
    finally:
        _set_running_loop(outer)


def _close_loops(loops: dict[int, _ThreadLoop]) -> None:
    for loop in loops.values():
        loop.close()
