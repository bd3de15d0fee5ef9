"""Environments in worker processes, with deadlines: one that hangs, exits or eats memory costs its trajectory alone."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any, TypeVar

from ..actors.waiting import ClosedError
from ..errors import SettingError
from ..processes.child import KILL_SECONDS
from ..processes.portable import NotPortableToChild, pickled
from .dealing import CLOSED, CLOSING_SECONDS, Claim, Dealer, Seat, orphaned_after
from .failures import EnvironmentFailed, WorkerLostError
from .given import EnvironmentSource
from .links import Link, ProcessLink, ThreadLink
from .loops import LoopThread
from .protocol import Message, Start, Step
from .questions import Deadlines
from .worker import Setup

__all__ = ["EnvironmentFailed", "EnvironmentPool", "Surroundings", "WorkerLostError"]

_log = logging.getLogger("proa.environments")
Result = TypeVar("Result")


class EnvironmentPool:
    """Hosts the surroundings of any number of trajectories in `workers` processes; used by many threads, each with an
    event loop of its own, none of which it blocks.

    `call_timeout` is the deadline of one tool call, `step_timeout` that of one `reset`, `step` or `close`. `memory_gib`
    limits each worker; None does not. What cannot be sent to another process runs in threads of this one.

        with EnvironmentPool(EnvironmentSource.load(environment="my_environments:Maze")) as pool:
            surroundings = await pool.begin({"prompt": "Find the way out."}, seed=1)
            step = await surroundings.step({"role": "assistant", "content": "left"})
            await surroundings.close()
    """

    def __init__(
        self,
        source: EnvironmentSource,
        *,
        workers: int = 2,
        call_timeout: float = 30.0,
        step_timeout: float = 60.0,
        memory_gib: float | None = 4.0,
    ) -> None:
        for name, value in {"call_timeout": call_timeout, "step_timeout": step_timeout}.items():
            if not (value > 0 and math.isfinite(value)):
                raise SettingError(f"environment.{name} must be a number of seconds above 0, not {value}")
        if workers < 1:
            raise SettingError(f"environment.workers must be at least 1, not {workers}")
        if memory_gib is not None and not memory_gib > 0:
            raise SettingError(f"environment.memory_gib must be above 0, or null for no limit, not {memory_gib}")
        self.deterministic = source.deterministic
        """Whether it answers the same each time."""
        deadlines = Deadlines(call_timeout, step_timeout)
        make_link = _links(source, deadlines, None if memory_gib is None else int(memory_gib * 2**30))
        longest_step = source.recipe.longest_step(deadlines)
        self._core = _Core(lambda: Dealer(make_link, source.name, workers, deadlines, longest_step))
        self._end = weakref.finalize(self, self._core.close)

    async def begin(self, row: Mapping[str, Any], *, seed: int, alone: bool = False) -> Surroundings:
        """A new environment, after its `reset`. `alone`: in a worker that has no other trajectory meanwhile, which
        proves who is at fault if that dies."""
        began, core, claim = monotonic(), self._core, Claim()
        try:
            seat, answer = await core.run(lambda dealer: dealer.begin(row, seed, alone, claim))
        except asyncio.CancelledError:
            with suppress(ClosedError):
                core.submit(lambda dealer: dealer.abandon(claim))  # it may have just begun
            raise
        return Surroundings(core, seat, Start(answer["messages"], answer["tools"]), monotonic() - began)

    async def run_agent(
        self, base_url: str, api_key: str, row: Mapping[str, Any], *, timeout: float, alone: bool = False
    ) -> float | None:
        """The reward that an agent gives, or None. EnvironmentFailed when it raises, or, with the ending `timed_out`,
        when it takes longer than this."""
        return await self._core.run(lambda dealer: dealer.run_agent(base_url, api_key, row, timeout, alone))

    def close(self) -> None:
        """End all workers, having closed what is open if it does so at once; whoever waits gets ClosedError."""
        self._end()

    def __enter__(self) -> EnvironmentPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class Surroundings:
    """One trajectory's environment. Its methods raise EnvironmentFailed, WorkerLostError or ClosedError."""

    def __init__(self, core: _Core, seat: Seat, start: Start, seconds: float) -> None:
        self.start = start
        """With the tools as JSON schemas."""
        self.seconds = seconds
        """Spent in the environment, so far."""
        self._core, self._seat = core, seat
        self._is_closed = False

    async def step(self, message: Message) -> Step:
        """What the environment answers to the model's message."""
        began = monotonic()
        try:
            return Step(**await self._core.run(lambda dealer: dealer.step(self._seat, message)))
        finally:
            self.seconds += monotonic() - began

    async def final_reward(self) -> float | None:
        """The reward of an environment that gives one at the end, for a trajectory that ended before the environment
        was done: it had no turns or tokens left. None from an environment that rewards steps."""
        began = monotonic()
        try:
            return await self._core.run(lambda dealer: dealer.score(self._seat))
        finally:
            self.seconds += monotonic() - began

    async def close(self) -> None:
        """Close the environment; never raises. A second time does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        began = monotonic()
        try:
            await self._core.run(lambda dealer: dealer.close(self._seat))
        except ClosedError:
            pass  # with all others
        finally:
            self.seconds += monotonic() - began


class _Core:
    """The pool's own thread and what runs there; apart from the pool, so that it can be forgotten without closing."""

    def __init__(self, make_dealer: Callable[[], Dealer]) -> None:
        self._make_dealer = make_dealer
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._dealer: Dealer | None = None
        self._is_closed = False

    def submit(self, work: Callable[[Dealer], Coroutine[Any, Any, Result]]) -> Future[Result]:
        """Have the dealer do something."""
        with self._lock:
            if self._is_closed:
                raise ClosedError(CLOSED)
            if self._thread is None:
                self._thread, self._dealer = LoopThread("proa environments"), self._make_dealer()
            assert self._dealer is not None
            return self._thread.submit(work(self._dealer))

    async def run(self, work: Callable[[Dealer], Coroutine[Any, Any, Result]]) -> Result:
        """The result of something that the dealer does."""
        try:
            return await asyncio.wrap_future(self.submit(work))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and not (task and task.cancelling()):
                raise ClosedError(CLOSED) from None
            raise

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
        if thread is None or self._dealer is None:
            return
        if thread.is_current():  # the garbage collector forgot the pool there; it must not wait for itself
            threading.Thread(target=_end, args=(thread, self._dealer), daemon=True).start()
        else:
            _end(thread, self._dealer)


def _end(thread: LoopThread, dealer: Dealer) -> None:
    try:
        thread.submit(dealer.shut()).result(CLOSING_SECONDS + KILL_SECONDS + 1.0)
    except TimeoutError:
        _log.warning("the workers of the environments did not end in time")
    thread.stop(5.0)


def _links(source: EnvironmentSource, deadlines: Deadlines, memory_limit: int | None) -> Callable[[], Link]:
    try:
        patience = orphaned_after(max(deadlines.call, deadlines.step))
        setup = Setup(pickled(source.recipe), source.name, deadlines, memory_limit, patience)
    except NotPortableToChild as reason:
        _log.warning(
            "%s runs in threads of this process, where a hang cannot be ended and memory is not limited, because it "
            "cannot be sent to a worker process (%s): define it at the top level of a module to change that",
            source.name, reason,
        )  # fmt: skip
        return lambda: ThreadLink(source.recipe.load, source.name, deadlines)
    return lambda: ProcessLink(setup)
