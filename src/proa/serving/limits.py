"""How much may be asked of an endpoint at a time, and the requests that are being answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .refusals import Refusal


@dataclass(frozen=True, slots=True)
class Limits:
    """What one endpoint takes."""

    body_bytes: int = 8 << 20
    """Of one request."""
    sequences: int = 2048
    """Decoded or waiting at the same time, those of all clients together."""
    seconds: float = 600.0
    """For one request, from its first byte to the last of its answer."""


class UnderWay:
    """Requests that are being answered, in any loop; from any thread they can be ended, and further ones refused."""

    def __init__(self) -> None:
        self.over: Refusal | None = None
        """Why no more are answered."""
        self._tasks: dict[asyncio.Task[Any], asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, task: asyncio.Task[Any]) -> Iterator[None]:
        """Inside, the task is one of them."""
        with self._lock:
            if self.over is not None:
                task.cancel()
                raise self.over
            self._tasks[task] = asyncio.get_running_loop()
        try:
            yield
        finally:
            with self._lock:
                self._tasks.pop(task, None)

    def refuse(self, why: Refusal) -> None:
        """Further ones are refused; those that are under way go on."""
        with self._lock:
            self.over = self.over or why

    def end(self, why: Refusal) -> None:
        """The same, and those that are under way are cancelled."""
        with self._lock:
            self.over = self.over or why
            for task, loop in self._tasks.items():
                loop.call_soon_threadsafe(task.cancel)

    def __len__(self) -> int:
        return len(self._tasks)


class Gate:
    """Lets in as many sequences as there are places."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    @contextmanager
    def places(self, count: int, *, held: int = 0) -> Iterator[None]:
        """Inside, so many places are taken, beside those that the same request holds already."""
        if count + held > self._most:
            raise Refusal(
                400, f"this asks for {count + held} completions, and {self._most} are the most at once: send several "
                "requests", "too_many_completions",
            )  # fmt: skip
        if self._taken + count > self._most:
            raise Refusal(
                429, f"{self._taken} completions are under way or waiting, of at most {self._most}: try again later",
                "too_many_requests", retry_after=1,
            )  # fmt: skip
        self._taken += count
        try:
            yield
        finally:
            self._taken -= count
