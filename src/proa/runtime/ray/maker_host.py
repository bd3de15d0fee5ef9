"""A maker as an actor, which calls the trainer and repeats lost calls."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, ClassVar

import ray
from ray.actor import ActorHandle

from ...actors.concurrency import concurrency_group
from ...actors.waiting import ClosedError, LeaseFailedError, WaitTimeoutError
from ...callbacks.performance import measured_performance
from ...data.lease import Delivery, Lease
from ...data.versions import NO_VERSION
from ...lifecycle.copies import PackedState
from ...lifecycle.hooks import BaseCallback, MakerCallback
from ...lifecycle.manager import CallbackManager
from ...lifecycle.moments import Scope
from ...lifecycle.policy import Priority
from ...record.live import ActorView
from ...record.secrets import redact_values
from ...roles.maker import ExperienceMakerHolder
from ...roles.parcel import unwrap
from ...roles.weights import Weights
from ..supervisor import MakerEnd, describe
from ..views import view_maker
from .calls import Once, request
from .link import Answer, DriverLink, Interests, Question
from .output import keep_output
from .replies import POLL_SECONDS, Location, Reply
from .shelf import SharedMemory
from .trainer_host import TrainerHost
from .transport import pack_states, wrap_delivery

log = logging.getLogger("proa.maker")


class RemoteBook:
    """The lease book, for a maker in another process.

    A delivery is in flight while the maker makes the next lease, and has arrived before that one is delivered. So
    delivering takes no time from the maker, and a full buffer still holds it back.
    """

    def __init__(self, trainer: ActorHandle[TrainerHost], store: RemoteStore, patience: float) -> None:
        self._trainer = trainer
        self._store = store
        self._patience = patience
        self._ticket = 0
        self._sender = ThreadPoolExecutor(1, "proa delivery")
        self._in_flight: Future[bool] | None = None

    def next_lease(self, maker: str) -> Lease:
        self._ticket += 1
        while (lease := self._ask(maker, waits=True)) is None:
            pass  # an idle maker is not a failure: the trainer's own wait is the one that counts
        return lease

    def another_lease(self, maker: str) -> Lease | None:
        self._ticket += 1
        return self._ask(maker, waits=False)

    def _ask(self, maker: str, *, waits: bool) -> Lease | None:
        if self._in_flight is not None and self._in_flight.done():
            self._in_flight.result()  # raises if it was refused
        arguments = (maker, self._ticket, self._store.last_fetched, waits, self._store.gpu)
        reply = _request(self._trainer.next_lease, *arguments, patience=self._patience)
        lease: Lease | None = reply.value
        if lease is not None and reply.weights is not None:
            self._store.at_hand = (lease.version, reply.weights)
        return lease

    def deliver(self, delivery: Delivery, maker: str) -> bool:
        if self._in_flight is not None and not self._in_flight.done():
            self.note_made([delivery.lease_id], maker)  # it is not overdue
        last_arrived = self._in_flight.result() if self._in_flight is not None else True
        self._in_flight = self._sender.submit(self._deliver, delivery, maker)
        return last_arrived

    def _deliver(self, delivery: Delivery, maker: str) -> bool:
        parts = wrap_delivery(delivery)
        try:
            while True:  # being held back is not a failure either
                taken: bool | None = _value(self._trainer.deliver, *parts, maker, patience=self._patience)
                if taken is not None:
                    return taken
        except ClosedError:
            raise
        except Exception as error:
            lease_id = delivery.lease_id
            raise LeaseFailedError(f"{maker} failed on lease {lease_id}: {error}", lease_id) from error

    # These two wait for their replies, as their order matters.

    def note_made(self, lease_ids: Sequence[int], maker: str) -> None:
        _request(self._trainer.note_made, list(lease_ids), maker, patience=self._patience)

    def note_handing_in(self, lease_id: int, maker: str) -> None:
        _request(self._trainer.note_handing_in, lease_id, maker, patience=self._patience)

    def note_progress(self, lease_ids: Sequence[int], maker: str) -> None:
        self._trainer.note_progress.remote(list(lease_ids), maker)

    def release(self, lease_id: int, maker: str) -> None:
        self._trainer.release.remote(lease_id, maker)


class RemoteStore:
    """The weights by version, for a maker in another process."""

    def __init__(self, trainer: ActorHandle[TrainerHost], patience: float) -> None:
        self._trainer = trainer
        self._patience = patience
        self.last_fetched = NO_VERSION
        self.at_hand: tuple[int, Any] = (NO_VERSION, None)
        """A version and a reference to its weights, which came with a lease."""
        self.gpu = ""
        """The engine's GPU, if it has one: weights that the trainer has on the same GPU are read there."""

    def wait_for_trainer(self) -> None:
        """Wait until the trainer is prepared, which has no deadline."""
        while not _value(self._trainer.prepared, patience=self._patience):
            pass

    def fetch(self, version: int, *, owner: str) -> Weights:
        offered, digest, probe = self._locate(version, owner)
        if isinstance(offered, SharedMemory):
            try:
                tensors = offered.open()
            except RuntimeError as error:
                log.warning("weights go through the host: %s cannot open the trainer's memory (%s)", owner, error)
                self.gpu = ""
                return self.fetch(version, owner=owner)
        else:
            tensors = unwrap(ray.get(offered, timeout=self._patience))
        self.last_fetched = version
        return Weights(version, tensors, digest, probe)

    def _locate(self, version: int, owner: str) -> Any:
        known, found = self.at_hand
        self.at_hand = (NO_VERSION, None)
        if known == version:
            return found
        self.wait_for_trainer()
        until = monotonic() + self._patience
        while monotonic() < until:
            found = _value(self._trainer.weights, version, self.gpu, patience=self._patience)
            if found is not None:
                return found
        raise WaitTimeoutError(f"{owner} waited {self._patience:g} s for weights of version {version}")


def _value(method: Any, *arguments: Any, patience: float) -> Any:
    return _request(method, *arguments, patience=patience).value


def _request(method: Any, *arguments: Any, patience: float) -> Reply:
    """The trainer's reply; raises `ClosedError` when the run is over, or the trainer gone."""
    try:
        reply: Reply = request(method, *arguments, who="the trainer", seconds=POLL_SECONDS + patience)
    except ray.exceptions.ActorDiedError as died:
        raise ClosedError("the trainer is gone") from died
    except ray.exceptions.RayTaskError as error:
        raise error.cause or error from None
    if reply.closed:
        raise ClosedError(reply.closed)
    return reply


@dataclass(frozen=True)
class MakerParts:
    """The parts of a maker's actor."""

    maker: ExperienceMakerHolder
    copies: Sequence[BaseCallback] = ()
    """Copies of the driver's callbacks, in its order."""


BuildMaker = Callable[[str, RemoteStore, BaseCallback | None], AbstractContextManager[MakerParts]]


class SnapshotOfCopies(MakerCallback):
    """Packs the copies of callbacks between two batches, when no hook changes them, if that was requested."""

    priority = Priority.LOGGING - 1
    uses_asyncio = False

    def __init__(self, copies: Sequence[BaseCallback]) -> None:
        self._copies = copies
        self.is_wanted = False
        self.packed: tuple[PackedState, ...] = ()

    def on_batch_end(self) -> None:
        if self.is_wanted:
            self.is_wanted = False
            self.packed = pack_states(self._copies)


@dataclass(repr=False)
class MakerHost:
    """One maker."""

    build: BuildMaker
    name: str
    trainer: ActorHandle[TrainerHost]
    interests: Interests
    patience: float
    keeps_output: bool = False
    maker: ExperienceMakerHolder | None = None
    snapshot: SnapshotOfCopies | None = None
    worked: Once[MakerEnd] = field(default_factory=Once)

    GROUPS: ClassVar = {"work": 1, "look": 3}

    def __post_init__(self) -> None:
        if self.keeps_output:
            keep_output(self.name)

    def __repr__(self) -> str:
        return self.name  # Ray writes it to its logs

    @concurrency_group("work")
    def work(self) -> MakerEnd:
        """Work on leases until there are no more."""
        return self.worked(self._work)

    def _work(self) -> MakerEnd:
        store = RemoteStore(self.trainer, self.patience)
        book = RemoteBook(self.trainer, store, self.patience)
        own = self.interests.within(Scope.MAKER)
        link = DriverLink(self.name, own, self._ask, self.patience) if own.events else None
        reason, lease_id, copies = "", None, tuple[BaseCallback, ...]()
        try:
            with self.build(self.name, store, link) as parts:
                self.maker, copies = parts.maker, tuple(parts.copies)
                if copies:
                    self.snapshot = SnapshotOfCopies(copies)
                    self.maker.manager.add(self.snapshot)
                store.wait_for_trainer()
                self.maker.work(book, store)
        except ClosedError:
            pass  # the run is over
        except BaseException as error:
            reason, lease_id = describe(error), getattr(error, "lease_id", None)
            print(redact_values(traceback.format_exc()), file=sys.stderr, flush=True)
        sys.stdout.flush()  # a last line without an end
        manager = self.maker.manager if self.maker is not None else CallbackManager()
        return MakerEnd(
            reason,
            lease_id,
            manager.errors,
            copies=pack_states(copies),
            performance=measured_performance(manager.callbacks),
            is_independent=None if self.maker is None else self.maker.engine.is_independent,
        )

    def _ask(self, question: Question, seconds: float) -> Answer | None:
        until = monotonic() + seconds
        answer: Answer | None = None
        with contextlib.suppress(ClosedError):  # the driver no longer listens
            while answer is None and monotonic() < until:
                answer = _value(self.trainer.ask_driver, question, patience=seconds)
            return answer
        return Answer()

    @concurrency_group("look")
    def ready(self) -> Location:
        return Location.current()

    @concurrency_group("look")
    def look(self) -> ActorView:
        if self.maker is None:
            return ActorView(self.name, "maker", doing="getting ready")
        return view_maker(self.name, self.maker, has_ended=False)

    @concurrency_group("look")
    def copies(self) -> Sequence[PackedState]:
        """The last packed state of its copies of callbacks; they are packed again after the next batch."""
        if self.snapshot is None:
            return ()
        self.snapshot.is_wanted = True
        return self.snapshot.packed

    @concurrency_group("look")
    def distrust_weights(self) -> None:
        """Load and check weights again before the next lease, as a silent maker may have missed some."""
        if self.maker is not None:
            self.maker.distrust_weights()
