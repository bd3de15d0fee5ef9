"""How trajectories get their turns from an engine: each by itself from a stream, or all together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from .engine_stream import StreamUser, streaming
from .versioned_engine import VersionedEngine

if TYPE_CHECKING:
    from ..data.sampling import Completion
    from ..engines.protocol import Request
    from .progress import Progress
    from .rollout import SamplingEngine


class TurnEngine(Protocol):
    """What trajectories, each a coroutine, ask for their turns."""

    @property
    def version(self) -> int:
        """Of the weights."""
        ...

    @property
    def continues(self) -> bool:
        """Whether a request may continue another."""
        ...

    async def complete(self, request: Request) -> Completion: ...

    def forget(self, request_id: str) -> None:
        """What was kept of a request, if one is named, is not continued."""
        ...

    def touch(self) -> None:
        """Something moves on outside of the engine."""
        ...

    def join(self) -> None:
        """One more trajectory is under way."""
        ...

    def leave(self) -> None:
        """A trajectory is over."""
        ...


class Streaming:
    """Turns of a stream: no trajectory waits for another."""

    continues = True

    def __init__(self, user: StreamUser) -> None:
        self._user = user

    @property
    def version(self) -> int:
        return self._user.version

    async def complete(self, request: Request) -> Completion:
        return await self._user.complete(request)

    def forget(self, request_id: str) -> None:
        if request_id:
            self._user.forget(request_id)

    def touch(self) -> None:
        self._user.touch()

    def join(self) -> None:
        """It makes no difference."""

    def leave(self) -> None:
        """It makes no difference."""


class AllTogether:
    """Turns of an engine whose bits depend on what is decoded together: once all trajectories that are under way want
    one, they get it together, in their own order, whoever asked first."""

    continues = False

    def __init__(self, engine: VersionedEngine, progress: Progress) -> None:
        self._engine = engine
        self._progress = progress
        self._under_way = 0
        self._waiting: dict[str, tuple[Request, asyncio.Future[Completion]]] = {}
        self._decoding: set[asyncio.Task[None]] = set()

    @property
    def version(self) -> int:
        return self._engine.version

    async def complete(self, request: Request) -> Completion:
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = request, answer
        self._decode_if_all_wait()
        try:
            return await answer
        finally:
            self._waiting.pop(request.id, None)

    def join(self) -> None:
        self._under_way += 1

    def leave(self) -> None:
        self._under_way -= 1
        self._decode_if_all_wait()

    def forget(self, request_id: str) -> None:
        """Nothing is kept."""

    def touch(self) -> None:
        """Leases are made one after the other: nobody counts."""

    def _decode_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) >= self._under_way:
            batch, self._waiting = list(self._waiting.values()), {}
            task = asyncio.get_running_loop().create_task(self._decode(batch))
            self._decoding.add(task)
            task.add_done_callback(self._decoding.discard)

    async def _decode(self, batch: list[tuple[Request, asyncio.Future[Completion]]]) -> None:
        batch = sorted((pair for pair in batch if not pair[1].done()), key=lambda pair: pair[0].id)
        try:
            requests = [request for request, _ in batch]
            generated = await asyncio.to_thread(self._engine.decode, requests)
        except BaseException as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), completion in zip(batch, generated, strict=True):
            if not answer.done():
                answer.set_result(completion)


@contextmanager
def turns_of(engine: SamplingEngine, progress: Progress) -> Iterator[TurnEngine]:
    """An engine for the turns of one rollout, whichever kind it is."""
    if isinstance(engine, StreamUser):
        with progress.generating():
            yield Streaming(engine)
    elif isinstance(engine, VersionedEngine):
        with engine.in_use, progress.generating():
            if engine.engine.is_independent:
                with streaming(engine) as user:
                    yield Streaming(user)
            else:
                yield AllTogether(engine, progress)
    else:
        raise TypeError(f"{type(engine).__name__} is not an engine that takes turns")
