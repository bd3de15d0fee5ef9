"""An engine that many generate with at the same time: their requests share every step, and each waits for its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from ..actors.waiting import ClosedError
from ..data.sampling import Completion
from ..engines.generating import Collected
from ..engines.own_stream import OwnStream
from ..engines.protocol import EngineBusyError
from ..errors import ProaError
from ..numerics import Numerics
from .versioned_engine import Generated

if TYPE_CHECKING:
    import torch

    from ..engines.protocol import Engine, Progress, Request
    from .progress import Progress as WorkProgress
    from .versioned_engine import VersionedEngine


_BUSY_SECONDS = 0.05
"""How often an engine that has no room, and nothing to decode, is asked again if nothing else is asked of it."""


class WeightsGoneError(ProaError):
    """Requests for a version of the weights that made room for another since it was loaded."""


@dataclass(eq=False)
class _Call:
    """What somebody wants of the engine between two steps; and again after the next one, while it is busy."""

    act: Callable[[], Any]
    answer: Future[Any] = field(default_factory=Future)

    def try_now(self) -> bool:
        """Whether it is done, in one way or the other."""
        try:
            found = self.act()
        except EngineBusyError:
            return False
        except BaseException as error:
            self.fail(error)
        else:
            with contextlib.suppress(InvalidStateError):  # the stream was closed meanwhile
                self.answer.set_result(found)
        return True

    def fail(self, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):  # it is answered, and not removed yet
            self.answer.set_exception(error)


@dataclass(eq=False)
class _Batch:
    """Requests that were submitted together, and what has come of them."""

    requests: Sequence[Request]
    user: StreamUser
    open: dict[str, Collected]
    listen: Callable[[Progress], None] | None = None
    """Called with the progress of every step, in the engine's thread."""
    done: dict[str, Completion] = field(default_factory=dict)
    answer: Future[list[Completion]] = field(default_factory=Future)

    def add(self, progress: Progress) -> bool:
        """Take in what a step added to a request; whether that was the last of it."""
        completion = self.open[progress.id].add(progress)
        if self.listen is not None:
            self.listen(progress)
        if completion is None:
            return False
        del self.open[progress.id]
        self.done[progress.id] = completion
        if not self.open:
            with contextlib.suppress(InvalidStateError):  # nobody wants it any more
                self.answer.set_result([self.done[request.id] for request in self.requests])
        return True

    def fail(self, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):
            self.answer.set_exception(error)


class EngineStream:
    """Steps an engine in a thread of its own, for as long as there is something to decode.

    Nobody else may use the engine meanwhile. Where code of a user runs in the same process, `guarded_from` says whose:
    settings of torch that it changed are put back before requests are taken in. With `sleeps` the engine gives memory
    back whenever it has nothing to decode.
    """

    def __init__(self, engine: Engine, *, name: str, guarded_from: str | None = None, sleeps: bool = False) -> None:
        self.free = engine.free
        """How many more sequences the engine could decode at once, when it was last looked at."""
        self._engine = engine
        self._sleeps = sleeps
        self._guarded_from = guarded_from
        self._numerics: Numerics | None = None
        self._changed = threading.Condition()
        self._calls: deque[_Call] = deque()
        self._batches: dict[str, _Batch] = {}  # by the id of each request that is open
        self._kept: set[str] = set()  # requests that may be continued, or will be
        self._refused = 0  # calls that the engine has no room for, until something changes
        self._over: BaseException | None = None
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"{name} engine", daemon=True)
        self._thread.start()

    def close(self, reason: str) -> None:
        """Fail whatever is still waited for; the engine is left with nothing."""
        self._end(ClosedError(reason))
        self._thread.join()
        for batch in set(self._batches.values()):
            batch.fail(ClosedError(reason))  # one that was submitted at the last moment
        with contextlib.suppress(Exception) if self._has_failed else contextlib.nullcontext():
            for request_id in {*self._batches, *self._kept}:
                self._engine.cancel(request_id)

    def _end(self, why: BaseException) -> None:
        with self._changed:
            self._over = self._over or why
            calls, batches = list(self._calls), set(self._batches.values())
            self._calls.clear()
            self._changed.notify_all()
        for call in calls:
            call.fail(self._over)
        for batch in batches:
            batch.fail(self._over)

    # -- from any thread -----------------------------------------------------------------------------

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> float:
        """Have the engine take weights, as soon as it has room for them; for how long what is decoded stood still.

        On a GPU they must be complete: the engine does not wait for what is still to compute them.
        """

        def take() -> float:
            begun = perf_counter()
            self._engine.load(weights, version)
            return perf_counter() - begun if self._batches else 0.0

        return float(self._ask(take).result())

    def score(self, sequences: Sequence[Sequence[int]], version: int) -> list[torch.Tensor] | None:
        """What the engine thinks of given tokens with the weights of that version, if these are its newest."""

        def take() -> list[torch.Tensor] | None:
            return self._engine.score(sequences) if version == max(self._engine.versions) else None

        scored: list[torch.Tensor] | None = self._ask(take).result()
        return scored

    def has(self, version: int) -> bool:
        """Whether the engine has these weights now."""
        return version in self._engine.versions

    def generate(self, requests: Sequence[Request], user: StreamUser) -> list[Completion]:
        """A completion for each request, in order; other threads generate meanwhile."""
        return self.begin(requests, user).result() if requests else []

    def begin(
        self, requests: Sequence[Request], user: StreamUser, listen: Callable[[Progress], None] | None = None
    ) -> Future[list[Completion]]:
        """The same without waiting for it; who cancels the answer cancels the requests. `listen` gets the
        progress of each step, in the engine's thread: it must be quick, and not raise."""
        batch = _Batch(requests, user, {request.id: Collected(request.stop_strings) for request in requests}, listen)
        batch.answer.add_done_callback(lambda answer: self._drop(requests) if answer.cancelled() else None)
        asked = self._ask(lambda: self._submit(batch))
        asked.add_done_callback(lambda call: batch.fail(error) if (error := call.exception()) is not None else None)
        return batch.answer

    def _drop(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.cancel(request.id)

    def cancel(self, request_id: str) -> None:
        """Drop a request, or what is kept of one; harmless if there is none, or the stream is closed."""

        def drop() -> None:
            if (batch := self._batches.pop(request_id, None)) is not None:
                batch.fail(ClosedError(f"request {request_id} was cancelled"))
            self._kept.discard(request_id)
            self._engine.cancel(request_id)

        with self._changed:
            if self._over is None:
                self._calls.append(_Call(drop))
                self._changed.notify_all()

    def _ask(self, act: Callable[[], Any]) -> Future[Any]:
        call = _Call(act)
        with self._changed:
            if self._over is not None:
                raise self._over
            self._calls.append(call)
            self._changed.notify_all()
        return call.answer

    # -- in its own thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with OwnStream(getattr(self._engine, "device", None))():
                while self._await_work():
                    self._answer_calls()
                    if self._batches:
                        self._step()
        except BaseException as error:  # of the engine: nothing that is under way can be completed
            self._has_failed = True
            self._end(error)

    def _await_work(self) -> bool:
        if self._sleeps and not self._batches:
            self._engine.sleep()
        with self._changed:
            if self._refused and not self._batches:
                self._changed.wait_for(
                    lambda: self._over is not None or len(self._calls) > self._refused, _BUSY_SECONDS
                )
            self._changed.wait_for(lambda: self._over is not None or self._calls or self._batches)
            return self._over is None

    def _answer_calls(self) -> None:
        with self._changed:
            calls = list(self._calls)
        done = {call for call in calls if call.try_now()}
        self.free = self._engine.free
        with self._changed:
            self._refused = 0 if done else len(calls)  # what was done may have made room
            self._calls = deque(call for call in self._calls if call not in done)

    def _submit(self, batch: _Batch) -> None:
        if batch.answer.done():
            return  # it was cancelled while it waited
        if any(not self.has(request.version) for request in batch.requests):
            raise WeightsGoneError("the weights that these requests name made room for others")
        self._restore_numerics()
        submitted = []
        try:
            for request in batch.requests:
                self._engine.submit(request)
                submitted.append(request.id)
        except BaseException:
            for request_id in submitted:
                self._engine.cancel(request_id)
            raise
        self._batches |= dict.fromkeys(submitted, batch)
        self._kept -= {request.continues for request in batch.requests}
        self._kept |= {request.id for request in batch.requests if request.keep}
        batch.user.has_begun = True

    def _step(self) -> None:
        begun = perf_counter()
        users = [batch.user for batch in self._batches.values()]
        for progress in self._engine.step():
            if progress.id not in self._batches:
                continue  # it was cancelled while this was under way
            batch = self._batches[progress.id]
            batch.user.moved_at = monotonic()
            if batch.add(progress):
                del self._batches[progress.id]
                if progress.finish_reason is None:
                    self._engine.cancel(progress.id)
        self.free = self._engine.free
        share = (perf_counter() - begun) / len(users)
        for user in users:
            user.engine_seconds += share

    def _restore_numerics(self) -> None:
        if self._guarded_from is None:
            return
        if self._numerics is None:
            self._numerics = Numerics()  # what was set before the first requests is meant
        self._numerics.restore(self._guarded_from)


class StreamUser:
    """One of those who generate with a stream, with weights of one version: what a rollout takes for its engine.

    `ensure` has the stream load these weights, if it has not got them.
    """

    def __init__(self, stream: EngineStream, name: str, version: int, ensure: Callable[[], None]) -> None:
        self.engine_seconds = 0.0
        """Its share of the time in which the engine was at work, by how many of the sequences were its own."""
        self.has_begun = False
        """Whether the engine has got something from it."""
        self.moved_at = monotonic()
        """When it last got a token."""
        self.version = version
        self._stream = stream
        self._name = name
        self._ensure = ensure

    def generate(self, requests: Sequence[Request], progress: WorkProgress) -> Generated:
        """A completion for each request, in order, with the weights of its version."""
        own = [self._own(request) for request in requests]
        while True:
            self._ensure()
            try:
                with progress.generating():
                    return Generated(self._stream.generate(own, self), self.version)
            except WeightsGoneError:
                continue

    async def complete(self, request: Request, *, listen: Callable[[Progress], None] | None = None) -> Completion:
        """One completion, while others are under way. Who cancels this cancels the request.

        Weights are not loaded for a request that continues another: the engine keeps those of what it keeps.
        """
        own = self._own(request)
        while True:
            if not request.continues:
                await asyncio.to_thread(self._ensure)
            try:
                [completion] = await asyncio.wrap_future(self._stream.begin([own], self, listen))
            except WeightsGoneError:
                if request.continues:
                    raise
            else:
                return completion

    def forget(self, request_id: str) -> None:
        """What is kept of a request of its own is not continued."""
        self._stream.cancel(f"{self._name}:{request_id}")

    def touch(self) -> None:
        """It moves on, though the engine has nothing to do for it."""
        self.moved_at = monotonic()

    def _own(self, request: Request) -> Request:
        """With names that no other user has, and the version that it generates with."""
        group, continues = (name and f"{self._name}:{name}" for name in (request.group, request.continues))
        return replace(request, id=f"{self._name}:{request.id}", version=self.version, group=group, continues=continues)


@contextlib.contextmanager
def streaming(engine: VersionedEngine) -> Iterator[StreamUser]:
    """An engine as a stream for one rollout: requests come and go. Weights are switched before it or after it."""
    with engine.in_use:
        stream = EngineStream(engine.engine, name="rollout")
        try:
            yield StreamUser(stream, "", max(0, engine.version), lambda: None)
        finally:
            stream.close("the rollout is over")
