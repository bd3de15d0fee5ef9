"""Which worker has which trajectory, and what becomes of both; all on the pool's loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from ..actors.waiting import ClosedError
from .failures import EnvironmentFailed, WorkerLostError
from .links import READY, Link
from .questions import Begin, Cancel, Close, CloseAll, Deadlines, Ping, Question, RunAgent, Score, Take
from .worker import NOTICE, START_SECONDS

log = logging.getLogger("proa.environments")

GRACE_SECONDS = 10.0
"""How much longer than the deadline of any call a worker may be silent, on a busy machine, before it is ended."""
ORPHAN_SECONDS = 5.0
"""After so much longer a worker process ends itself, for the pool that would have done it is gone."""
MOST_ALONE = 8
"""So many trajectories are alone in a worker at the same time; others wait for their turn."""
CLOSING_SECONDS = 5.0
"""How long environments may take to close when the pool does."""
_LONGEST_TICK = 1.0
_WORKER = "the worker of these environments"
CLOSED = "these environments were closed"


def orphaned_after(seconds: float) -> float:
    """When a worker ends itself, in which a call may last so long: later than its pool would have done it."""
    return seconds + GRACE_SECONDS + ORPHAN_SECONDS


@dataclass(slots=True)
class _Open:
    """A question that is not answered yet."""

    answer: asyncio.Future[dict[str, Any]]
    seat: Seat | None
    seconds: float
    """The longest that code of the user's may run for it without a pause."""
    what: str


@dataclass(eq=False, slots=True)
class Seat:
    """A trajectory's place in a worker."""

    trajectory: int
    worker: Worker
    is_alone: bool


@dataclass(slots=True)
class Claim:
    """Somebody's who begins a trajectory, to give it up at any time."""

    seat: Seat | None = None


class Worker:
    """The pool's side of one host: asks it, and sees when it does not answer."""

    _numbers = itertools.count(READY + 1)

    def __init__(self, link: Link, on_unfit: Callable[[Worker], None], on_ended: Callable[[Worker], None]) -> None:
        self.link = link
        self.seats: set[Seat] = set()
        self.is_condemned = False
        self.lost = ""
        """Why it answers no more."""
        self._on_unfit, self._on_ended = on_unfit, on_ended
        self._open: dict[int, _Open] = {}
        self._is_ready = False
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._was_heard = False
        self._last_words = ""

    async def ask(self, question: Question, seat: Seat | None, *, seconds: float, what: str) -> dict[str, Any]:
        """The answer; EnvironmentFailed where it says so, WorkerLostError if there is none."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self.link.start(self))
        try:
            await asyncio.shield(self._starting)
        except OSError as error:
            self.end("could not be started")
            raise EnvironmentFailed(f"{what}: no worker process could be started: {error}") from error
        if self.lost:
            raise WorkerLostError(self.lost, was_calling=False)
        number = next(self._numbers)
        try:
            self.link.send(number, question)
        except Exception as error:  # it runs the user's code
            raise EnvironmentFailed(
                f"{what}: a row or message cannot be sent to the worker process: {error}"
            ) from error
        opened = self._open[number] = _Open(asyncio.get_running_loop().create_future(), seat, seconds, what)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())
        try:
            answer = await opened.answer
        except asyncio.CancelledError:
            if not self.lost:
                self.link.send(next(self._numbers), Cancel(number))
            raise
        finally:
            self._open.pop(number, None)
        if "failed" in answer:
            raise EnvironmentFailed(answer["failed"], answer["ending"])
        return answer

    def heard(self, number: int, content: bytes) -> None:
        self._was_heard = True
        if number == READY:
            self._is_ready = True
        elif number == NOTICE:
            notice = json.loads(content)
            self._last_words = notice.get("last_words", self._last_words)
            if notice.get("condemned") and not self.is_condemned:
                self.is_condemned = True
                self._on_unfit(self)
        elif number in self._open and not self._open[number].answer.done():
            self._open[number].answer.set_result(json.loads(content))

    def ended(self, why: str) -> None:
        self.end(why)

    def end(self, why: str, error: BaseException | None = None) -> None:
        """End the host; whoever waits for it is told, with this error if one is given."""
        if self._ending is None:
            self.lost = f"{_WORKER} is being ended"
            self._on_unfit(self)
            self._ending = asyncio.ensure_future(self._end(why, error))

    def abandon(self, error: BaseException) -> None:
        """Whoever waits for an answer gets this error instead."""
        for number, opened in self._open.items():
            if not opened.answer.done():
                opened.answer.set_exception(error)
                self.link.send(next(self._numbers), Cancel(number))

    async def wait_for_end(self) -> None:
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _end(self, why: str, error: BaseException | None) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})
        how = await self.link.end()
        self.lost = f"{_WORKER} {why or f'died ({self._last_words or how})'}"
        for opened in list(self._open.values()):
            if not opened.answer.done():
                opened.answer.set_exception(error or self._loss_of(opened))
                opened.answer.exception()  # the one who asked may have left
        self._on_ended(self)

    def _loss_of(self, opened: _Open) -> BaseException:
        if opened.seat is not None and opened.seat.is_alone:
            return EnvironmentFailed(f"{opened.what}: {self.lost}, with no other trajectory in it")
        return WorkerLostError(f"{self.lost}, during {opened.what} among others", was_calling=True)

    async def _watch(self) -> None:
        """End the host when it has been silent for longer than any call under way may take. Counted is the time in
        which this loop could have heard it."""
        silent = 0.0
        while self._open and self._ending is None:
            patience = max(opened.seconds for opened in self._open.values()) + GRACE_SECONDS
            if not self._is_ready:
                patience = max(patience, START_SECONDS)
            if silent > patience:
                self.end(f"did not answer for {silent:.3g} s and was ended")
                return
            self._was_heard = False
            if self._is_ready:
                self.link.send(next(self._numbers), Ping(patience + ORPHAN_SECONDS))
            tick = min(_LONGEST_TICK, patience / 4)
            await asyncio.sleep(tick)
            silent = 0.0 if self._was_heard else silent + tick


class Dealer:
    """Deals trajectories to workers, replaces those that are lost or condemned."""

    def __init__(
        self, make_link: Callable[[], Link], name: str, workers: int, deadlines: Deadlines, longest_step: float
    ) -> None:
        self._make_link = make_link
        self._name = name
        self._deadlines = deadlines
        self._longest_step = longest_step
        self._places: list[Worker | None] = [None] * workers
        self._workers: set[Worker] = set()
        self._alone_room = asyncio.Semaphore(MOST_ALONE)
        self._alone_waiting = 0
        self._alone_idle: list[Worker] = []
        self._trajectories = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._complained = False
        self._is_closed = False

    async def begin(
        self, row: Mapping[str, Any], seed: int, is_alone: bool, claim: Claim
    ) -> tuple[Seat, dict[str, Any]]:
        seat = claim.seat = await self._seat(is_alone)
        try:
            question = Begin(seat.trajectory, row, seed)
            what = f"{self._name}.reset"
            return seat, await seat.worker.ask(question, seat, seconds=self._deadlines.step, what=what)
        except BaseException:
            self._later(self.close(seat))
            raise

    async def abandon(self, claim: Claim) -> None:
        """Close what was begun, if it was: whoever began it has left."""
        if claim.seat is not None:
            await self.close(claim.seat)

    async def step(self, seat: Seat, message: Mapping[str, Any]) -> dict[str, Any]:
        question, what = Take(seat.trajectory, message), f"{self._name}.step"
        return await seat.worker.ask(question, seat, seconds=self._longest_step, what=what)

    async def score(self, seat: Seat) -> float | None:
        question, what = Score(seat.trajectory), f"{self._name}.get_reward"
        answer = await seat.worker.ask(question, seat, seconds=self._deadlines.step, what=what)
        return None if answer["reward"] is None else float(answer["reward"])

    async def run_agent(
        self, base_url: str, api_key: str, row: Mapping[str, Any], seconds: float, is_alone: bool
    ) -> float | None:
        seat = await self._seat(is_alone)
        try:
            question = RunAgent(seat.trajectory, base_url, api_key, row, seconds)
            answer = await seat.worker.ask(question, seat, seconds=seconds, what=self._name)
            return None if answer["reward"] is None else float(answer["reward"])
        finally:
            self._release(seat)

    async def close(self, seat: Seat) -> None:
        """Close an environment, and give up its place, also if nobody waits for that. Never raises, nor lasts longer
        than its deadline."""
        await asyncio.shield(self._later(self._close(seat)))

    async def _close(self, seat: Seat) -> None:
        if seat not in seat.worker.seats:
            return
        try:
            if not seat.worker.lost:
                question, what = Close(seat.trajectory), f"{self._name}.close"
                asked = seat.worker.ask(question, seat, seconds=self._deadlines.step, what=what)
                await asyncio.wait_for(asked, self._deadlines.step + GRACE_SECONDS)
        except (WorkerLostError, TimeoutError, ClosedError):
            pass  # there is nothing left to close, or nobody to do it
        except EnvironmentFailed as failure:
            if not self._complained:
                self._complained = True
                log.warning("%s; further failures to close are not reported", failure)
        finally:
            self._release(seat)

    async def shut(self) -> None:
        """Close all environments, for a while; then end all workers."""
        self._is_closed = True
        asked = []
        for worker in self._workers:
            worker.abandon(ClosedError(CLOSED))
            if worker.seats and not worker.lost:
                closing = worker.ask(CloseAll(), None, seconds=self._deadlines.step, what="close")
                asked.append(asyncio.ensure_future(closing))
        if asked:
            await asyncio.wait(asked, timeout=min(CLOSING_SECONDS, self._deadlines.step))
            for one in asked:
                one.add_done_callback(lambda one: one.cancelled() or one.exception())
        workers = list(self._workers)
        for worker in workers:
            worker.end("was ended", ClosedError(CLOSED))
        await asyncio.gather(*(worker.wait_for_end() for worker in workers), return_exceptions=True)
        await asyncio.sleep(0)  # in which the connections close

    async def _seat(self, is_alone: bool) -> Seat:
        if is_alone:
            self._alone_waiting += 1
            try:
                await self._alone_room.acquire()
            except asyncio.CancelledError:
                if len(self._alone_idle) == self._alone_waiting:  # one of them was for this trajectory
                    self._alone_idle.pop().end("was ended: it has nothing to do")
                raise
            finally:
                self._alone_waiting -= 1
            worker = self._alone_idle.pop() if self._alone_idle else self._new_worker()
        else:
            place = min(
                range(len(self._places)), key=lambda place: len(one.seats) if (one := self._places[place]) else 0
            )
            worker = self._places[place] or self._new_worker()
            self._places[place] = worker
        seat = Seat(next(self._trajectories), worker, is_alone)
        worker.seats.add(seat)
        return seat

    def _new_worker(self) -> Worker:
        if self._is_closed:
            raise ClosedError(CLOSED)
        worker = Worker(self._make_link(), self._replace, self._workers.discard)
        self._workers.add(worker)
        return worker

    def _release(self, seat: Seat) -> None:
        worker = seat.worker
        if seat not in worker.seats:
            return
        worker.seats.discard(seat)
        if seat.is_alone:
            self._alone_room.release()
            # One for each that waits, of which some may be about to take theirs.
            if not worker.lost and not worker.is_condemned and len(self._alone_idle) < self._alone_waiting:
                self._alone_idle.append(worker)
                return
        if not worker.seats and worker not in self._places:
            worker.end("was ended: it has nothing to do")

    def _replace(self, worker: Worker) -> None:
        """A worker is condemned or lost: it gets no further trajectories, and is ended when it has none."""
        self._places = [None if one is worker else one for one in self._places]
        self._alone_idle = [one for one in self._alone_idle if one is not worker]
        if not worker.seats and not worker.lost:
            worker.end("was ended: it has nothing to do")

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
