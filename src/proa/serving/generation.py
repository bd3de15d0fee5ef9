"""The completions of a request as they come from the engine, all of them under way at the same time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import torch

from ..data.sampling import Completion
from ..errors import ProaError

if TYPE_CHECKING:
    from ..engines.protocol import Progress, Request

T = TypeVar("T")


class User(Protocol):
    """Who generates: a `StreamUser`, or what is like one."""

    version: int

    async def complete(self, request: Request, *, listen: Callable[[Progress], None] | None = None) -> Completion: ...

    def forget(self, request_id: str) -> None: ...


class EngineFailedError(ProaError):
    """The engine raised something, and decodes nothing any more."""


async def all_of(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What they return, in order. The first that fails, or whoever cancels this, cancels all."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def completions_of(requests: Sequence[Request], user: User) -> list[Completion]:
    """A completion for each request, in order."""
    return await all_of([_complete(request, user) for request in requests])


async def _complete(request: Request, user: User, listen: Callable[[Progress], None] | None = None) -> Completion:
    if request.sampling.max_new_tokens == 0:  # only the prompt is of interest
        return Completion(torch.empty(0, dtype=torch.int64), torch.empty(0), "length")
    try:
        return await user.complete(request, listen=listen)
    except ProaError:
        raise
    except Exception as error:
        raise EngineFailedError(f"the engine failed: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Grown:
    """What one step added to one of several completions."""

    index: int
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """One of several completions, whole."""

    index: int
    completion: Completion


Event: TypeAlias = Grown | Ended


async def events_of(requests: Sequence[Request], user: User) -> AsyncGenerator[list[Event], None]:
    """The same bit by bit: each time all that has happened since the last. Whoever reads slowly holds nobody up, and
    gets more at a time. Who stops reading cancels the requests."""
    happened: asyncio.Queue[Event | BaseException] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def follow(index: int, request: Request) -> None:
        def listen(progress: Progress) -> None:
            grown = Grown(index, progress.tokens, progress.log_probs)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(happened.put_nowait, grown)

        try:
            happened.put_nowait(Ended(index, await _complete(request, user, listen)))
        except Exception as error:
            happened.put_nowait(error)

    tasks = [asyncio.create_task(follow(*pair)) for pair in enumerate(requests)]
    open_ = len(tasks)
    try:
        while open_:
            events = [await happened.get()]
            while not happened.empty():
                events.append(happened.get_nowait())
            known: list[Event] = []
            for event in events:
                if isinstance(event, BaseException):
                    raise event
                known.append(event)
            open_ -= sum(isinstance(event, Ended) for event in known)
            yield known
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
