"""Event loops that users' code cannot end, and one in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from .text import raised

Result = TypeVar("Result")


class OwnProcessSelector(selectors.DefaultSelector):
    """Ends a process that user code forked and that came back into the event loop: only its parent may answer."""

    def __init__(self) -> None:
        super().__init__()
        self._own_id = os.getpid()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if os.getpid() != self._own_id:
            os._exit(0)
        found: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        return found


def run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until `stop`: a task of the user's that raises SystemExit does not end it."""
    while True:
        try:
            loop.run_forever()
            return
        except BaseException as error:
            print(f"a task that an environment started raised {raised(error)}; it goes on", file=sys.stderr)


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.SelectorEventLoop(OwnProcessSelector())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_soon(self, function: Callable[..., Any], *given: Any) -> None:
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(function, *given)

    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def stop(self, seconds: float) -> bool:
        """End it; False if it did not end in time. It ends then as soon as what blocks it lets it."""
        self.call_soon(self._loop.stop)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        run_until_stopped(self._loop)
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:  # those that do not listen are left behind
            with suppress(BaseException):
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=0.2))
        self._loop.close()
