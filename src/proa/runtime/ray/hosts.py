"""The actors: a trainer with the lease book beside it, and makers that know it only by its handle.

Ray runs a lost call twice, or not at all, and says `unavailable` of calls that did run. So every call here may be
repeated: asking for a lease again gives the one that was given, delivering twice changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import monotonic
from typing import Any, ClassVar

import ray

from ...data.lease import Delivery, Lease
from ...lifecycle.hooks import BaseCallback
from ...roles.lease_book import LeaseBook
from ...roles.maker import ExperienceMakerHolder
from ...roles.trainer import DetachedTrainer, concurrency_group
from ...roles.waiting import ClosedError, WaitTimeoutError
from ...roles.weights import Keep, Weights, WeightStore
from .link import Answer, Interests, Mailbox, Question, ToRemoteDriver
from .transport import unwrap, wrap

POLL_SECONDS = 2.0
"""How long a question stays with the trainer before it is asked again."""
CALL_SECONDS = 30.0
"""After so long without a reply, a call counts as lost and is repeated."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Something, nothing yet (`value` None), or the end."""

    value: Any = None
    closed: str = ""


@dataclass
class TrainerParts:
    """What a trainer's actor is built of."""

    trainer: DetachedTrainer
    book: LeaseBook
    store: WeightStore
    summary: Callable[[], dict[str, Any]]
    """What the run's header says of how far it came."""


class TrainerHost:
    """Trainer rank 0 with the lease book, the weights and the driver's mailbox."""

    GROUPS: ClassVar = {"compute": 1, "leases": 64, "weights": 64, "driver": 4, "look": 4}

    def __init__(
        self, build: Callable[[BaseCallback, Keep], TrainerParts], interests: Interests, patience: float
    ) -> None:
        self._mailbox = Mailbox(patience)
        self._parts = build(ToRemoteDriver(self._mailbox, interests), put_away)
        self._given: dict[str, tuple[int, Reply]] = {}
        self._asking: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @concurrency_group("compute")
    def fit(self, total_steps: int, update_steps: int, train_epochs: int) -> dict[str, Any]:
        """Train to the end; the state that is left, as plain values."""
        try:
            self._parts.trainer.fit(total_steps, update_steps, train_epochs)
            return self._parts.trainer.state.to_dict()
        finally:
            self._parts.book.close("the run is over")

    @concurrency_group("look")
    def summary(self) -> dict[str, Any]:
        return self._parts.summary()

    @concurrency_group("look")
    def ready(self) -> int:
        """The process, once it is up."""
        return os.getpid()

    # -- makers --------------------------------------------------------------------------------------

    @concurrency_group("leases")
    def next_lease(self, maker: str, ticket: int) -> Reply:
        """Work for a maker. Asked again with the same ticket, because the answer was lost, it is the same again."""
        with self._asking[maker]:
            last, reply = self._given.get(maker, (0, Reply()))
            if last == ticket:
                return reply
            try:
                reply = Reply(self._parts.book.next_lease(maker, seconds=POLL_SECONDS))
            except WaitTimeoutError:
                return Reply()
            except ClosedError as over:
                return Reply(closed=str(over))
            self._given[maker] = (ticket, reply)
            return reply

    @concurrency_group("leases")
    def deliver(self, delivery: Delivery, maker: str) -> Reply:
        try:
            return Reply(self._parts.book.deliver(delivery, maker, seconds=POLL_SECONDS))
        except WaitTimeoutError:
            return Reply()
        except ClosedError as over:
            return Reply(closed=str(over))

    @concurrency_group("leases")
    def release(self, lease_id: int, maker: str) -> None:
        self._parts.book.release(lease_id, maker)

    @concurrency_group("weights")
    def weights(self, version: int) -> Reply:
        """A reference to the weights of that version, with their digest; in a list, so that Ray leaves it one."""
        try:
            kept = self._parts.store.fetch(version, owner="a maker", seconds=POLL_SECONDS)
        except WaitTimeoutError:
            return Reply()
        return Reply([kept.tensors, kept.digest])

    # -- the driver ----------------------------------------------------------------------------------

    @concurrency_group("driver")
    def take_questions(self, seconds: float) -> list[Question]:
        return self._mailbox.take(seconds)

    @concurrency_group("driver")
    def answer(self, number: int, answer: Answer) -> None:
        self._mailbox.answer(number, answer)

    @concurrency_group("look")
    def overdue(self, seconds: float) -> dict[int, str]:
        return self._parts.book.overdue(seconds)

    @concurrency_group("look")
    def dismiss(self, maker: str, lease_id: int | None = None) -> None:
        """A maker is gone: it gets nothing more, and what it had goes to another."""
        self._parts.book.dismiss(maker)
        for held in self._parts.book.held_by(maker) if lease_id is None else [lease_id]:
            self._parts.book.release(held, maker)

    @concurrency_group("look")
    def stop(self, reason: str, by: str) -> None:
        self._parts.trainer.state.stop_training(reason, by=by)

    @concurrency_group("look")
    def close(self, reason: str) -> None:
        self._parts.book.close(reason, step_goes_on=True)

    @concurrency_group("look")
    def look(self) -> dict[str, Any]:
        """Who waits for what, and where everything is."""
        book, state = self._parts.book, self._parts.trainer.state
        return {
            "step": state.global_step,
            "version": state.policy_version,
            "ledger": book.ledger.as_dict(),
            "versions": self._parts.store.versions,
            "waits": [str(wait) for wait in (*book.room.waits(), *self._parts.store.room.waits())],
        }


def put_away(tensors: Any) -> Any:
    """Weights into the object store; a reference to them comes back. One copy, for any number of makers."""
    return ray.put(wrap(tensors))


class RemoteBook:
    """The lease book as a maker sees it."""

    def __init__(self, trainer: Any, patience: float) -> None:
        self._trainer = trainer
        self._patience = patience
        self._ticket = 0

    def next_lease(self, maker: str) -> Lease:
        self._ticket += 1
        while True:  # an idle maker is no failure: the trainer's own wait is the one that counts
            lease: Lease | None = _asked(self._trainer.next_lease, maker, self._ticket, patience=self._patience)
            if lease is not None:
                return lease

    def deliver(self, delivery: Delivery, maker: str) -> bool:
        while True:  # held back is no failure either
            taken: bool | None = _asked(self._trainer.deliver, delivery, maker, patience=self._patience)
            if taken is not None:
                return taken

    def release(self, lease_id: int, maker: str) -> None:
        self._trainer.release.remote(lease_id, maker)


class RemoteStore:
    """The weights by version, as a maker sees them."""

    def __init__(self, trainer: Any, patience: float) -> None:
        self._trainer = trainer
        self._patience = patience

    def fetch(self, version: int, *, owner: str) -> Weights:
        until = monotonic() + self._patience
        while monotonic() < until:
            found = _asked(self._trainer.weights, version, patience=self._patience)
            if found is not None:
                reference, digest = found
                return Weights(version, unwrap(ray.get(reference, timeout=self._patience)), digest)
        raise WaitTimeoutError(f"{owner} waited {self._patience:g} s for weights of version {version}")


def _asked(method: Any, *arguments: Any, patience: float) -> Any:
    """The reply's value, asking again for what was lost on the way."""
    until = monotonic() + patience
    while True:
        try:
            reply: Reply = ray.get(method.remote(*arguments), timeout=CALL_SECONDS)
        except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError) as lost:
            if monotonic() > until:
                raise WaitTimeoutError(f"the trainer has not replied for {patience:g} s") from lost
            continue
        except ray.exceptions.ActorDiedError as died:
            raise ClosedError("the trainer is gone") from died
        if reply.closed:
            raise ClosedError(reply.closed)
        return reply.value


class MakerHost:
    """One maker."""

    GROUPS: ClassVar = {"work": 1, "look": 2}

    def __init__(
        self,
        build: Callable[[str, RemoteStore], AbstractContextManager[ExperienceMakerHolder]],
        name: str,
        trainer: Any,
        patience: float,
    ) -> None:
        self._book, self._store = RemoteBook(trainer, patience), RemoteStore(trainer, patience)
        self._building = build(name, self._store)
        self._maker = self._building.__enter__()

    @concurrency_group("work")
    def work(self) -> None:
        """Work on leases until there are no more."""
        with contextlib.suppress(ClosedError):  # the run is over
            self._maker.work(self._book, self._store)
        self._building.__exit__(None, None, None)

    @concurrency_group("look")
    def ready(self) -> int:
        return os.getpid()

    @concurrency_group("look")
    def look(self) -> dict[str, Any]:
        state = self._maker.state
        return {"leases": state.global_step, "version": state.policy_version}
