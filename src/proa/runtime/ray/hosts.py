"""The actors: trainers, the first of them with the lease book beside it, and makers that know it by its handle.

Ray runs a lost call twice, or not at all, and says `unavailable` of calls that did run. So every call here may be
repeated: asking for a lease again gives the one that was given, delivering twice changes nothing, and what is done once
(`prepare`, `fit`, `work`) is done once however often it is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

import ray

from ...data.lease import Delivery, Lease
from ...data.packed_items import PackedItems
from ...lifecycle.hooks import BaseCallback
from ...lifecycle.moments import Scope
from ...record.live import ActorView
from ...roles.concurrency import concurrency_group
from ...roles.lease_book import LeaseBook
from ...roles.maker import ExperienceMakerHolder
from ...roles.replicas import Alone, Replicas
from ...roles.trainer import DetachedTrainer
from ...roles.waiting import ClosedError, LeaseFailedError, WaitTimeoutError
from ...roles.weights import Keep, Weights, WeightStore
from ..process_group import ProcessGroup, serve_store
from .calls import Once, asked, portable
from .link import Answer, Interests, Key, Mailbox, Question, ToRemoteDriver
from .transport import unwrap, unwrap_delivery, wrap, wrap_delivery

NO_VERSION = -2
"""Below the base that adapters go over, which is -1."""
POLL_SECONDS = 2.0
"""How long a question stays with the trainer before it is asked again."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Something, nothing yet (`value` None), or the end."""

    value: Any = None
    closed: str = ""
    weights: Any = None
    """With a lease whose weights the maker has not: where they are, and their digest. It saves a call for each."""


def this_node() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where an actor runs, and where what it prints goes."""

    pid: int
    node: str
    log: str

    @classmethod
    def here(cls) -> Whereabouts:
        try:
            log = str(Path("/proc/self/fd/2").readlink())  # Ray has it point to the worker's own file
        except OSError:
            log = ""
        return cls(os.getpid(), this_node(), log)


@dataclass
class TrainerParts:
    """What a trainer's actor is built of; book and store are rank 0's."""

    trainer: DetachedTrainer
    book: LeaseBook | None
    store: WeightStore | None
    summary: Callable[[], dict[str, Any]]
    """What the run's header says of how far it came."""


BuildTrainer = Callable[[BaseCallback | None, Keep, Replicas], TrainerParts]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trainer's work ended."""

    state: dict[str, Any]
    summary: dict[str, Any]
    error: BaseException | None = None
    traceback: str = ""


class RankHost:
    """One of several trainers."""

    GROUPS: ClassVar = {"compute": 1, "look": 4}

    def __init__(self, build: BuildTrainer, rank: int, size: int, backend: str, patience: float) -> None:
        self._build = build
        self._rank, self._size = rank, size
        self._backend = backend
        self._patience = patience
        self._link: BaseCallback | None = None
        self._parts: TrainerParts | None = None
        self._replicas: Replicas = Alone()
        self._prepared: Once[None] = Once()
        self._is_prepared = threading.Event()
        self._trained: Once[Outcome] = Once()
        self._thread: threading.Thread | None = None
        self._store: Any = None

    @concurrency_group("look")
    def ready(self) -> Whereabouts:
        return Whereabouts.here()

    @concurrency_group("look")
    def address(self) -> tuple[str, int]:
        """Where the other trainers find this one."""
        host = this_node()
        self._store = self._store or serve_store(host)
        return host, self._store.port

    @concurrency_group("compute")
    def prepare(self, address: tuple[str, int] | None) -> None:
        """Build everything; with several trainers, together with the others."""
        self._prepared(lambda: self._prepare(address))

    def _prepare(self, address: tuple[str, int] | None) -> None:
        settings: dict[str, Any] = {"backend": self._backend, "patience": self._patience}
        if self._store is not None:
            self._replicas = ProcessGroup(self._store, self._rank, self._size, **settings)
        elif address is not None:
            self._replicas = ProcessGroup.connect(address, self._rank, self._size, **settings)
        self._parts = self._build(self._link, put_away, self._replicas)
        self._is_prepared.set()

    @concurrency_group("compute")
    def fit(self, total_steps: int, update_steps: int, train_epochs: int) -> Outcome:
        """Train to the end, whatever that is."""
        return self._trained(lambda: self._fit(total_steps, update_steps, train_epochs))

    def _fit(self, *counts: int) -> Outcome:
        parts = self._built
        self._thread = threading.current_thread()
        error: BaseException | None = None
        told = ""
        try:
            parts.trainer.fit(*counts)
        except BaseException as raised:
            error, told = portable(raised), traceback.format_exc()
            traceback.print_exc()  # into this actor's log
        finally:
            self._thread = None
            if parts.book is not None:
                parts.book.close("the run is over")
        return Outcome(parts.trainer.state.to_dict(), parts.summary(), error, told)

    @concurrency_group("look")
    def interrupt(self, reason: str) -> None:
        """End training as Ctrl-C ends it where the trainer is in the foreground: in the middle of whatever it does."""
        self.close(reason)
        thread = self._thread
        if thread is not None and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
            )

    @concurrency_group("look")
    def close(self, reason: str) -> None:
        """The run cannot go on: whoever waits here is told."""
        if isinstance(self._replicas, ProcessGroup):
            self._replicas.abandon(reason)
        if self._parts is not None and self._parts.book is not None:
            self._parts.book.close(reason, step_goes_on=True)

    @concurrency_group("look")
    def look_at_trainer(self) -> ActorView:
        if self._parts is None:
            return ActorView(f"trainer_{self._rank}", "trainer", doing="getting ready")
        trainer = self._parts.trainer
        doing = trainer.activity.look()
        return ActorView(
            f"trainer_{self._rank}",
            "trainer",
            doing=doing.what,
            since=doing.since,
            version=trainer.state.policy_version,
            spent=doing.spent,
        )

    @property
    def _built(self) -> TrainerParts:
        assert self._parts is not None, "it is prepared before it trains"
        return self._parts


@dataclass(frozen=True, slots=True)
class RunLook:
    """What rank 0 knows of the run."""

    trainer: ActorView
    step: int
    of: int
    episode: int
    version: int
    versions: list[int]
    ledger: dict[str, Any]
    waits: list[tuple[str, str, float]]
    """Owner, reason, seconds."""
    overdue: dict[int, str]
    """Leases that a maker has had for too long, and which."""


class TrainerHost(RankHost):
    """Trainer rank 0 with the lease book, the weights and the driver's mailbox."""

    GROUPS: ClassVar = {"compute": 1, "leases": 64, "weights": 64, "driver": 4, "moments": 64, "look": 4}

    def __init__(
        self, build: BuildTrainer, interests: Interests, size: int, backend: str, patience: float
    ) -> None:  # fmt: skip
        super().__init__(build, 0, size, backend, patience)
        self._mailbox = Mailbox()
        self._link = ToRemoteDriver("trainer_0", interests.of(Scope.TRAINER), self._mailbox.ask, patience)
        self._given: dict[str, tuple[int, Reply]] = {}
        self._asking: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    # -- makers --------------------------------------------------------------------------------------

    @concurrency_group("leases")
    def prepared(self) -> Reply:
        """Whether there is anything to ask for yet; makers get ready while the trainer does."""
        return Reply(self._is_prepared.wait(POLL_SECONDS))

    @concurrency_group("leases")
    def next_lease(self, maker: str, ticket: int, has_version: int) -> Reply:
        """Work for a maker. Asked again with the same ticket, because the answer was lost, it is the same again."""
        with self._asking[maker]:
            last, reply = self._given.get(maker, (0, Reply()))
            if last == ticket:
                return reply
            try:
                lease = self._book.next_lease(maker, seconds=POLL_SECONDS)
                reply = Reply(
                    lease, weights=None if lease.version == has_version else self.weights(lease.version).value
                )
            except WaitTimeoutError:
                return Reply()
            except ClosedError as over:
                return Reply(closed=str(over))
            self._given[maker] = (ticket, reply)
            return reply

    @concurrency_group("leases")
    def deliver(self, packed: PackedItems, rest: Delivery, maker: str) -> Reply:
        try:
            return Reply(self._book.deliver(unwrap_delivery(packed, rest), maker, seconds=POLL_SECONDS))
        except WaitTimeoutError:
            return Reply()
        except ClosedError as over:
            return Reply(closed=str(over))

    @concurrency_group("leases")
    def release(self, lease_id: int, maker: str) -> None:
        self._book.release(lease_id, maker)

    @concurrency_group("weights")
    def weights(self, version: int) -> Reply:
        """A reference to the weights of that version, with their digest; in a list, so that Ray leaves it one."""
        store = self._built.store
        assert store is not None, "rank 0 has it"
        try:
            kept = store.fetch(version, owner="a maker", seconds=POLL_SECONDS)
        except WaitTimeoutError:
            return Reply()
        return Reply([kept.tensors, kept.digest])

    @concurrency_group("moments")
    def ask_driver(self, question: Question) -> Reply:
        """A maker's moment, for the driver's listeners."""
        return Reply(self._mailbox.ask(question, POLL_SECONDS))

    # -- the driver ----------------------------------------------------------------------------------

    @concurrency_group("driver")
    def exchange(self, answers: Mapping[Key, Answer], seconds: float) -> list[Question]:
        return self._mailbox.exchange(answers, seconds)

    @concurrency_group("look")
    def dismiss(self, maker: str) -> list[int]:
        """A maker is gone: it gets nothing more, and the leases that it had, which are returned, go to others."""
        self._book.dismiss(maker)
        for lease_id in (held := self._book.held_by(maker)):
            self._book.release(lease_id, maker)
        return held

    @concurrency_group("look")
    def look(self, lease_timeout: float) -> RunLook:
        """Who waits for what, and where everything is."""
        parts = self._built
        book, state, store = self._book, parts.trainer.state, parts.store
        rooms = [book.room, *([store.room] if store is not None else [])]
        now = monotonic()
        return RunLook(
            self.look_at_trainer(),
            state.global_step,
            state.max_steps,
            state.episode,
            state.policy_version,
            store.versions if store is not None else [],
            book.ledger.as_dict(),
            [(wait.owner, wait.reason(), now - wait.since) for room in rooms for wait in room.waits()],
            book.overdue(lease_timeout),
        )

    @property
    def _book(self) -> LeaseBook:
        book = self._built.book
        assert book is not None, "rank 0 has it"
        return book


def put_away(tensors: Any) -> Any:
    """Weights into the object store; a reference to them comes back. One copy, for any number of makers."""
    return ray.put(wrap(tensors))


class RemoteBook:
    """The lease book as a maker sees it.

    A delivery is on its way while the maker makes the next lease, and no longer: it has arrived before that one is
    handed over. So the way costs the maker nothing, and a full buffer still holds it back.
    """

    def __init__(self, trainer: Any, store: RemoteStore, patience: float) -> None:
        self._trainer = trainer
        self._store = store
        self._patience = patience
        self._ticket = 0
        self._sender = ThreadPoolExecutor(1, "proa delivery")
        self._on_its_way: Future[bool] | None = None

    def next_lease(self, maker: str) -> Lease:
        self._ticket += 1
        while True:  # an idle maker is no failure: the trainer's own wait is the one that counts
            if self._on_its_way is not None and self._on_its_way.done():
                self._on_its_way.result()  # it may have been refused
            arguments = (maker, self._ticket, self._store.last_fetched)
            reply = _reply(self._trainer.next_lease, *arguments, patience=self._patience)
            if reply.value is not None:
                lease: Lease = reply.value
                if reply.weights is not None:
                    self._store.at_hand = (lease.version, reply.weights)
                return lease

    def deliver(self, delivery: Delivery, maker: str) -> bool:
        last_arrived = self._on_its_way.result() if self._on_its_way is not None else True
        self._on_its_way = self._sender.submit(self._deliver, delivery, maker)
        return last_arrived

    def _deliver(self, delivery: Delivery, maker: str) -> bool:
        parts = wrap_delivery(delivery)
        try:
            while True:  # held back is no failure either
                taken: bool | None = _replied(self._trainer.deliver, *parts, maker, patience=self._patience)
                if taken is not None:
                    return taken
        except ClosedError:
            raise
        except Exception as error:
            lease_id = delivery.lease_id
            raise LeaseFailedError(f"{maker} failed on lease {lease_id}: {error}", lease_id) from error

    def release(self, lease_id: int, maker: str) -> None:
        self._trainer.release.remote(lease_id, maker)


class RemoteStore:
    """The weights by version, as a maker sees them."""

    def __init__(self, trainer: Any, patience: float) -> None:
        self._trainer = trainer
        self._patience = patience
        self.last_fetched = NO_VERSION
        self.at_hand: tuple[int, Any] = (NO_VERSION, None)
        """A version, and where it is: what came with a lease."""

    def wait_for_trainer(self) -> None:
        """Until it is prepared, which is work and takes as long as it takes."""
        while not _replied(self._trainer.prepared, patience=self._patience):
            pass

    def fetch(self, version: int, *, owner: str) -> Weights:
        reference, digest = self._found(version, owner)
        weights = Weights(version, unwrap(ray.get(reference, timeout=self._patience)), digest)
        self.last_fetched = version
        return weights

    def _found(self, version: int, owner: str) -> Any:
        known, found = self.at_hand
        self.at_hand = (NO_VERSION, None)
        if known == version:
            return found
        self.wait_for_trainer()
        until = monotonic() + self._patience
        while monotonic() < until:
            found = _replied(self._trainer.weights, version, patience=self._patience)
            if found is not None:
                return found
        raise WaitTimeoutError(f"{owner} waited {self._patience:g} s for weights of version {version}")


def _replied(method: Any, *arguments: Any, patience: float) -> Any:
    return _reply(method, *arguments, patience=patience).value


def _reply(method: Any, *arguments: Any, patience: float) -> Reply:
    """What the trainer says; raises `ClosedError` when the run is over, however that is said."""
    try:
        reply: Reply = asked(method, *arguments, who="the trainer", seconds=patience)
    except ray.exceptions.ActorDiedError as died:
        raise ClosedError("the trainer is gone") from died
    except ray.exceptions.RayTaskError as error:
        raise error.cause or error from None
    if reply.closed:
        raise ClosedError(reply.closed)
    return reply


@dataclass(frozen=True, slots=True)
class MakerEnd:
    """How a maker's work ended: with the run, or because of something."""

    reason: str = ""
    lease_id: int | None = None


BuildMaker = Callable[[str, RemoteStore, BaseCallback | None], AbstractContextManager[ExperienceMakerHolder]]


@dataclass
class MakerHost:
    """One maker."""

    build: BuildMaker
    name: str
    trainer: Any
    interests: Interests
    patience: float
    maker: ExperienceMakerHolder | None = None
    worked: Once[MakerEnd] = field(default_factory=Once)

    GROUPS: ClassVar = {"work": 1, "look": 2}

    @concurrency_group("work")
    def work(self) -> MakerEnd:
        """Work on leases until there are no more."""
        return self.worked(self._work)

    def _work(self) -> MakerEnd:
        store = RemoteStore(self.trainer, self.patience)
        book = RemoteBook(self.trainer, store, self.patience)
        own = self.interests.of(Scope.MAKER)
        link = ToRemoteDriver(self.name, own, self._ask, self.patience) if own.events else None
        try:
            with self.build(self.name, store, link) as maker:
                self.maker = maker
                store.wait_for_trainer()
                maker.work(book, store)
        except ClosedError:
            pass  # the run is over
        except BaseException as error:
            traceback.print_exc()  # into this actor's log
            cause = f" ({type(error.__cause__).__name__})" if error.__cause__ is not None else ""
            return MakerEnd(f"{error}{cause}", getattr(error, "lease_id", None))
        return MakerEnd()

    def _ask(self, question: Question, seconds: float) -> Answer | None:
        until = monotonic() + seconds
        answer: Answer | None = None
        with contextlib.suppress(ClosedError):  # the driver has gone home
            while answer is None and monotonic() < until:
                answer = _replied(self.trainer.ask_driver, question, patience=seconds)
            return answer
        return Answer()

    @concurrency_group("look")
    def ready(self) -> Whereabouts:
        return Whereabouts.here()

    @concurrency_group("look")
    def look(self) -> ActorView:
        if self.maker is None:
            return ActorView(self.name, "maker", doing="getting ready")
        maker, doing = self.maker, self.maker.activity.look()
        return ActorView(
            self.name,
            "maker",
            doing=doing.what,
            since=doing.since,
            version=maker.loaded_version,
            leases=maker.leases_made,
            tokens=maker.tokens_made,
            spent=doing.spent,
        )

    @concurrency_group("look")
    def distrust_weights(self) -> None:
        """It was silent, and may have missed something: load and check again before the next lease."""
        if self.maker is not None:
            self.maker.distrust_weights()
