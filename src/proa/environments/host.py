"""Runs environments: many trajectories side by side on one event loop, each call with a deadline.

The same in a worker process (worker.py) and in a thread of this one (links.py). Async methods run on the loop, sync
ones in threads. What goes wrong in a trajectory is its answer; what would go wrong for others too, a thread that is
stuck or memory that is gone, is reported through `Alarm`.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import json
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any, Protocol, TypeAlias

from .answers import WrongShape, as_reward, as_start, as_step
from .calls import Calls, is_async
from .failures import EnvironmentFailed, Raised
from .protocol import Start
from .questions import Answer, Begin, Cancel, Close, CloseAll, Deadlines, Ping, Question, RunAgent, Score, Take, failed
from .schemas import tool_name, tool_schema
from .text import raised
from .threads import UNWIND_SECONDS, CallThreads
from .tools import ToolEnvironment

Maker: TypeAlias = Callable[..., Any]
"""Makes an environment, or is an agent."""


_IMPORT_SECONDS = 120.0
_SHORTEST_WAIT = 0.05  # while a tool is called, the time that is left to its step stands still


class Alarm(Protocol):
    """Told of what concerns all trajectories of a host."""

    def stuck(self) -> None:
        """Something cannot be ended: this host should get no further trajectories."""

    def exhausted(self) -> None:
        """There is no memory left, and nobody knows who has it."""

    def more_threads(self) -> None:
        """There will be one more thread than there ever was at once."""


@dataclass(slots=True)
class _Opened:
    """A trajectory."""

    id: int
    environment: Any = None
    _calling: int = 0
    _calling_since: float = 0.0
    _called_seconds: float = 0.0

    def enter_call(self) -> None:
        if not self._calling:
            self._calling_since = monotonic()
        self._calling += 1

    def leave_call(self) -> None:
        self._calling -= 1
        if not self._calling:
            self._called_seconds += monotonic() - self._calling_since

    def called_seconds(self) -> float:
        """In tool calls, which have deadlines of their own."""
        return self._called_seconds + (monotonic() - self._calling_since if self._calling else 0.0)


def make_or_refuse(load: Callable[[], Maker], name: str) -> Maker:
    """The maker; if it cannot be had, one that says why, for each trajectory."""
    try:
        return load()
    except BaseException as error:  # the user's module is imported here
        reason = f"{name} could not be loaded in its worker: {raised(error)}"

        def refuse(*_: Any, **__: Any) -> Any:
            raise EnvironmentFailed(reason)

        return refuse


class Host:
    """Answers questions; never raises, whatever the user's code does."""

    def __init__(self, make: Maker, name: str, deadlines: Deadlines, alarm: Alarm, memory_limit: int | None) -> None:
        self._make = make
        self._name = name
        self._deadlines = deadlines
        self._alarm = alarm
        self._memory_limit = memory_limit
        self._opened: dict[int, _Opened] = {}
        self._closing: set[asyncio.Task[Answer]] = set()
        self._threads = CallThreads(alarm.stuck, alarm.more_threads)

    async def answer(self, question: Question) -> Answer:
        try:
            match question:
                case Begin():
                    return await self._begin(question)
                case Take():
                    return await self._step(question)
                case Score():
                    return await self._score(question)
                case RunAgent():
                    return await self._run_agent(question)
                case Close():
                    return await self._close(question.trajectory)
                case CloseAll():
                    await asyncio.gather(*map(self._close, list(self._opened)), return_exceptions=True)
            return {}
        except EnvironmentFailed as failure:
            return failed(str(failure), failure.ending)
        except Exception as error:  # of the host's own, or no memory for it
            self._check_memory(error)
            return failed(f"{self._name}: {raised(error)}")

    def encoded(self, answer: Answer) -> bytes:
        """An answer as JSON; why there is none, where that cannot be written: a number of thousands of digits, say."""
        try:
            return json.dumps(answer).encode()
        except Exception as error:
            self._check_memory(error)
            return json.dumps(failed(f"{self._name} returned what cannot be sent: {raised(error)}")).encode()

    async def _begin(self, begin: Begin) -> Answer:
        opened = self._opened[begin.trajectory] = _Opened(begin.trajectory)
        environment = await self._made(opened)
        if isinstance(environment, ToolEnvironment):
            environment.calls = _HostCalls(self, opened)
        value = await self._call(opened, f"{self._name}.reset", environment.reset, begin.row, seed=begin.seed)
        if isinstance(value, Start) and any(map(callable, value.tools)):
            value = await self._described(opened, value)
        start = self._read(f"{self._name}.reset", as_start, value, begin.row)
        return {"messages": start.messages, "tools": start.tools}

    async def _described(self, opened: _Opened, start: Start) -> Start:
        """With schemas of functions: in a thread, and with more time, for making the first imports a slow library."""
        try:
            schemas = await self._threads.run(opened.id, lambda: list(map(tool_schema, start.tools)), _IMPORT_SECONDS)
        except Raised as failure:
            reason = f"{self._name}.reset returned tools of which one cannot be used: {failure.error}"
            raise EnvironmentFailed(reason) from None
        return Start(start.messages, schemas)

    async def _made(self, opened: _Opened) -> Any:
        """The environment; if nobody waits for it any more, it is closed when it is there."""
        making = asyncio.ensure_future(self._call(opened, f"{self._name}()", self._make))
        try:
            opened.environment = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(lambda _: self._close_late(opened, making))
            raise
        return opened.environment

    def _close_late(self, opened: _Opened, making: asyncio.Task[Any]) -> None:
        if not making.cancelled() and making.exception() is None:
            opened.environment = making.result()
            self._opened[opened.id] = opened
            closing = asyncio.ensure_future(self.answer(Close(opened.id)))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _step(self, take: Take) -> Answer:
        opened = self._known(take.trajectory)
        value = await self._call(opened, f"{self._name}.step", opened.environment.step, take.message)
        return asdict(self._read(f"{self._name}.step", as_step, value))

    async def _score(self, question: Score) -> Answer:
        opened = self._known(question.trajectory)
        score = getattr(opened.environment, "final_reward", None)
        if score is None:
            return {"reward": None}
        value = await self._call(opened, f"{self._name}.get_reward", score)
        return {"reward": self._read(f"{self._name}.get_reward", as_reward, value)}

    async def _run_agent(self, question: RunAgent) -> Answer:
        opened = _Opened(question.trajectory)
        called = functools.partial(self._make, question.base_url, question.api_key, dict(question.row))
        try:
            value = await self._called(opened, called, question.seconds, pausing=_never)
            return {"reward": self._read(self._name, as_reward, value)}
        except Raised as failure:
            raise self._failure_of(failure.error, self._name) from None
        except TimeoutError:
            late = _late(question.seconds, "trajectory_timeout")
            raise EnvironmentFailed(f"{self._name} {late}", "timed_out") from None
        finally:
            self._threads.forget(question.trajectory)

    async def _close(self, trajectory: int) -> Answer:
        opened = self._opened.pop(trajectory, None)
        try:
            close = getattr(opened.environment, "close", None) if opened else None
            if opened and callable(close):
                await self._call(opened, f"{self._name}.close", close)
            return {}
        finally:
            self._threads.forget(trajectory)

    def _known(self, trajectory: int) -> _Opened:
        try:
            return self._opened[trajectory]
        except KeyError:
            raise EnvironmentFailed(f"{self._name}: this trajectory was closed") from None

    def _read(self, what: str, read: Callable[..., Any], *value: Any) -> Any:
        """What was returned, in the protocol's form."""
        try:
            return read(*value)
        except WrongShape as wrong:
            raise EnvironmentFailed(f"{what} returned {wrong}") from None
        except Exception as error:
            self._check_memory(error)
            raise EnvironmentFailed(f"{what} returned what cannot be read: {raised(error)}") from None

    async def _call(
        self, opened: _Opened, what: str, function: Callable[..., Any], /, *given: Any, **named: Any
    ) -> Any:
        """What the user's function returns; EnvironmentFailed if it raises or passes its deadline."""
        called = functools.partial(function, *given, **named)
        try:
            return await self._called(opened, called, self._deadlines.step, pausing=opened.called_seconds)
        except Raised as failure:
            raise self._failure_of(failure.error, what) from None
        except TimeoutError:
            raise EnvironmentFailed(f"{what} {_late(self._deadlines.step, 'step_timeout')}") from None

    async def call_tool(self, opened: _Opened, function: Callable[..., Any], /, **arguments: Any) -> Any:
        """What a tool returns, or `Raised`; EnvironmentFailed if it passes its deadline, or raises that itself."""
        called = functools.partial(function, **arguments)
        opened.enter_call()
        try:
            return await self._called(opened, called, self._deadlines.call, pausing=_never)
        except Raised as failure:
            if isinstance(failure.error, EnvironmentFailed):
                raise failure.error from None
            self._check_memory(failure.error)
            raise
        except TimeoutError:
            late = _late(self._deadlines.call, "call_timeout")
            raise EnvironmentFailed(f"tool {tool_name(function)!r} {late}") from None
        finally:
            opened.leave_call()

    async def call_method(self, opened: _Opened, function: Callable[..., Any], /, **arguments: Any) -> Any:
        """What a method returns that an environment of ours calls for the user's."""
        called = functools.partial(function, **arguments)
        what = f"{self._name}.{tool_name(function)}"
        try:
            return await self._called(opened, called, self._deadlines.step, pausing=_never)
        except Raised as failure:
            raise self._failure_of(failure.error, what) from None
        except TimeoutError:
            raise EnvironmentFailed(f"{what} {_late(self._deadlines.step, 'step_timeout')}") from None

    def _failure_of(self, error: BaseException, what: str) -> EnvironmentFailed:
        if isinstance(error, EnvironmentFailed):
            return error
        self._check_memory(error)
        return EnvironmentFailed(f"{what} raised {raised(error)}")

    async def _called(
        self, opened: _Opened, function: functools.partial[Any], seconds: float, *, pausing: Callable[[], float]
    ) -> Any:
        """What a function returns, or `Raised`; TimeoutError when the deadline has passed, to which the seconds of
        `pausing` do not count."""
        if is_async(function):
            return await self._within(function(), seconds, pausing)
        began = monotonic()
        found = await self._threads.run(opened.id, function, seconds)
        if not inspect.isawaitable(found):
            return found
        return await self._within(found, max(0.0, seconds - (monotonic() - began)), pausing)

    async def _within(self, awaitable: Awaitable[Any], seconds: float, pausing: Callable[[], float]) -> Any:
        task = asyncio.ensure_future(_guarded(awaitable))
        until = monotonic() + seconds - pausing()
        try:
            while not task.done():
                left = until + pausing() - monotonic()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait({task}, timeout=max(left, _SHORTEST_WAIT))
        finally:
            if not task.done():
                self._end_task(task)
        if task.cancelled():
            raise Raised(asyncio.CancelledError())
        return task.result()

    def _end_task(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody else asks
        loop = asyncio.get_running_loop()
        loop.call_later(UNWIND_SECONDS, lambda: None if task.done() else self._alarm.stuck())

    def _check_memory(self, error: BaseException) -> None:
        """After a MemoryError: if there is room again, whoever got it wanted too much, and others are unharmed."""
        if not isinstance(error, MemoryError) or self._memory_limit is None:
            return
        traceback.clear_frames(error.__traceback__)  # they hold what was got
        gc.collect()
        try:
            bytearray(self._memory_limit // 4)
        except MemoryError:
            self._alarm.exhausted()


def _never() -> float:
    return 0.0


def _late(seconds: float, setting: str) -> str:
    return f"did not answer within {seconds:g} s ({setting})"


class _HostCalls(Calls):
    """Calls of one trajectory, with its host's deadlines."""

    def __init__(self, host: Host, opened: _Opened) -> None:
        self._host, self._opened = host, opened

    async def tool(self, function: Callable[..., Any], /, **arguments: Any) -> Any:
        return await self._host.call_tool(self._opened, function, **arguments)

    async def method(self, function: Callable[..., Any], /, **arguments: Any) -> Any:
        return await self._host.call_method(self._opened, function, **arguments)


async def _guarded(awaitable: Awaitable[Any]) -> Any:
    """Its result, or `Raised`: asyncio lets SystemExit and KeyboardInterrupt through its loop, which would end it."""
    try:
        return await awaitable
    except (asyncio.CancelledError, EnvironmentFailed, Raised):
        raise
    except BaseException as error:
        raise Raised(error) from error


class HostServer:
    """Takes questions by number, and sends the answers as they come."""

    def __init__(self, host: Host, send: Callable[[int, bytes], None]) -> None:
        self._host, self._send = host, send
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def receive(self, number: int, question: Question) -> None:
        if isinstance(question, Ping):
            self._send(number, b"{}")
        elif isinstance(question, Cancel):
            if question.number in self._tasks:
                self._tasks[question.number].cancel()
        else:
            self._tasks[number] = asyncio.get_running_loop().create_task(self._answer(number, question))

    async def _answer(self, number: int, question: Question) -> None:
        try:
            answer = await self._host.answer(question)
        finally:
            del self._tasks[number]
        self._send(number, self._host.encoded(answer))
