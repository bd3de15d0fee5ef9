"""The trainers as actors; the first also has the lease book, the weights and the driver's mailbox.

Ray runs a lost call twice, or not at all, and raises `ActorUnavailableError` for calls that did run. So every call here
is safe to repeat: a repeated request for a lease returns the same lease, a repeated delivery changes nothing, and
`prepare` and `fit` do their work once.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ...actors.concurrency import concurrency_group
from ...actors.waiting import ClosedError, WaitTimeoutError
from ...callbacks.performance import Performance, measured_performance
from ...data.lease import Delivery
from ...data.packed_items import PackedItems
from ...learning.process_group import ProcessGroup, serve_store
from ...learning.replicas import Alone, Replicas, leaving_on_error
from ...leases.book import LeaseBook
from ...lifecycle.copies import PackedState
from ...lifecycle.hooks import BaseCallback
from ...lifecycle.moments import Scope
from ...record.live import ActorView
from ...roles.trainer import DetachedTrainer
from ...roles.weights import Shelf, WeightStore
from ..output import print_hidden_traceback
from ..views import RunSnapshot, view_trainer
from .calls import Once, portable
from .link import Answer, AskDriver, DriverLink, Interests, Key, Mailbox, Question
from .output import keep_output
from .replies import POLL_SECONDS, Location, Reply, this_node
from .shelf import RayShelf
from .transport import pack_states, unwrap_delivery


@dataclass
class TrainerParts:
    """The parts of a trainer's actor; only rank 0 has a book and a store."""

    trainer: DetachedTrainer
    book: LeaseBook | None
    store: WeightStore | None
    summary: Callable[[], dict[str, Any]]
    """Returns the header's entries about the run's progress."""
    copies: Sequence[BaseCallback] = ()
    """Copies of the driver's callbacks, in its order."""


@dataclass(frozen=True, slots=True)
class TrainerTies:
    """A trainer's connections to the others of its run; only rank 0 has those to the driver."""

    replicas: Replicas
    shelf: Shelf
    link: BaseCallback | None = None
    ask_driver: AskDriver | None = None


BuildTrainer = Callable[[TrainerTies], TrainerParts]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trainer's work ended."""

    state: dict[str, Any]
    summary: dict[str, Any]
    error: BaseException | None = None
    traceback: str = ""
    copies: Sequence[PackedState] = ()
    """The state of its copies of callbacks."""
    performance: Performance | None = None
    """The measurements of a performance evaluator there."""


class RankHost:
    """One of several trainers."""

    GROUPS: ClassVar = {"compute": 1, "look": 4}

    def __init__(
        self, build: BuildTrainer, rank: int, size: int, backend: str, patience: float, keeps_output: bool = False
    ) -> None:
        if keeps_output:
            keep_output(f"trainer_{rank}")
        self._build = build
        self._rank, self._size = rank, size
        self._backend = backend
        self._patience = patience
        self._link: DriverLink | None = None
        self._ask_driver: AskDriver | None = None
        self._parts: TrainerParts | None = None
        self._replicas: Replicas = Alone()
        self._prepared: Once[None] = Once()
        self._is_prepared = threading.Event()
        self._trained: Once[Outcome] = Once()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._store: TCPStore | None = None

    def __repr__(self) -> str:
        return f"trainer_{self._rank}"  # Ray writes it to its logs

    @concurrency_group("look")
    def ready(self) -> Location:
        return Location.current()

    @concurrency_group("look")
    def address(self) -> tuple[str, int]:
        """The address of the store that the other trainers connect to."""
        host = this_node()
        self._store = self._store or serve_store(host)
        return host, self._store.port

    @concurrency_group("compute")
    def prepare(self, address: tuple[str, int] | None) -> None:
        """Build all parts, together with the other trainers."""
        self._prepared(lambda: self._prepare(address))

    def _prepare(self, address: tuple[str, int] | None) -> None:
        rank, size, backend, patience = self._rank, self._size, self._backend, self._patience
        if self._store is not None:
            self._replicas = ProcessGroup(self._store, rank, size, backend=backend, patience=patience)
        elif address is not None:
            self._replicas = ProcessGroup.connect(address, rank, size, backend=backend, patience=patience)
        ties = TrainerTies(self._replicas, RayShelf(), self._link, self._ask_driver)
        with leaving_on_error(self._replicas):
            self._parts = self._build(ties)
        self._is_prepared.set()

    @concurrency_group("compute")
    def fit(self, total_steps: int, update_steps: int, train_epochs: int) -> Outcome:
        """Train to the end."""
        return self._trained(lambda: self._fit(total_steps, update_steps, train_epochs))

    def _fit(self, *counts: int) -> Outcome:
        parts = self._built
        self._thread = threading.current_thread()
        error: BaseException | None = None
        text, summary = "", dict[str, Any]()
        try:
            parts.trainer.fit(*counts)
        except BaseException as raised:
            error, text = portable(raised), traceback.format_exc()
            print_hidden_traceback()  # the driver gets it, and shows it once
        finally:
            self._thread = None
            self._has_ended = True
            if parts.book is not None:
                parts.book.close("the run is over")
        try:
            summary = parts.summary()
        except Exception:  # a GPU error that ended training, say, also fails here, and must not hide the first
            print_hidden_traceback()
        sys.stdout.flush()  # a last line without an end
        return Outcome(
            parts.trainer.state.to_dict(),
            summary,
            error,
            text,
            pack_states(parts.copies),
            measured_performance(parts.trainer.manager.callbacks),
        )

    @concurrency_group("look")
    def interrupt(self, reason: str) -> None:
        """End training at the next boundary between steps, with a checkpoint."""
        if self._parts is not None:
            self._parts.trainer.interrupt(reason)

    @concurrency_group("look")
    def interrupt_now(self, reason: str) -> None:
        """End training at once, as a second Ctrl-C does for a trainer in the foreground."""
        self.close(reason)
        thread = self._thread
        if thread is not None and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
            )

    @concurrency_group("look")
    def close(self, reason: str) -> None:
        """End every wait here with the reason, as the run cannot continue."""
        self._replicas.abandon(reason)
        if self._parts is not None and self._parts.book is not None:
            self._parts.book.close(reason, step_continues=True)

    @concurrency_group("look")
    def view(self) -> ActorView:
        if self._parts is None:
            return ActorView(f"trainer_{self._rank}", "trainer", doing="getting ready")
        return view_trainer(f"trainer_{self._rank}", self._parts.trainer, has_ended=self._has_ended)

    @property
    def _built(self) -> TrainerParts:
        assert self._parts is not None, "it is prepared before it trains"
        return self._parts


class TrainerHost(RankHost):
    """Trainer rank 0 with the lease book, the weights and the driver's mailbox."""

    # Idle makers hold a thread each while they wait for a lease, so deliveries have their own.
    GROUPS: ClassVar = {
        "compute": 1, "leases": 64, "deliveries": 64, "weights": 64, "driver": 4, "moments": 64, "look": 4,
    }  # fmt: skip

    def __init__(
        self,
        build: BuildTrainer,
        interests: Interests,
        size: int,
        backend: str,
        patience: float,
        keeps_output: bool = False,
    ) -> None:
        super().__init__(build, 0, size, backend, patience, keeps_output)
        self._mailbox = Mailbox()
        self._link = DriverLink("trainer_0", interests.within(Scope.TRAINER), self._mailbox.ask, patience)
        self._ask_driver = AskDriver("trainer_0", self._mailbox.ask, patience)
        self._given: dict[str, tuple[int, Reply]] = {}
        self._asking: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    # -- makers --------------------------------------------------------------------------------------

    @concurrency_group("leases")
    def prepared(self) -> Reply:
        """Whether there are leases and weights yet; makers get ready in parallel."""
        return Reply(self._is_prepared.wait(POLL_SECONDS))

    @concurrency_group("leases")
    def next_lease(self, maker: str, ticket: int, has_version: int, waits: bool = True, gpu: str = "") -> Reply:
        """A lease for a maker whose engine is on that GPU. A maker that has leases does not wait, and gets no more than
        its share.

        A repeated call with the same ticket, because the reply was lost, returns the same lease. One repeated after the
        next request returns nothing.
        """
        with self._asking[maker]:
            last, reply = self._given.get(maker, (0, Reply()))
            if ticket <= last:
                return reply if ticket == last else Reply()
            try:
                lease = self._book.next_lease(maker, seconds=POLL_SECONDS) if waits else self._book.another_lease(maker)
                if lease is None:
                    return Reply()
                has_weights = lease.version == has_version
                reply = Reply(lease, weights=None if has_weights else self.weights(lease.version, gpu).value)
            except WaitTimeoutError:
                return Reply()
            except ClosedError as over:
                return Reply(closed=str(over))
            self._given[maker] = (ticket, reply)
            return reply

    @concurrency_group("deliveries")
    def deliver(self, packed: PackedItems, rest: Delivery, maker: str) -> Reply:
        try:
            return Reply(self._book.deliver(unwrap_delivery(packed, rest), maker, seconds=POLL_SECONDS))
        except WaitTimeoutError:
            return Reply()
        except ClosedError as over:
            return Reply(closed=str(over))

    @concurrency_group("deliveries")
    def note_made(self, lease_ids: Sequence[int], maker: str) -> Reply:
        self._book.note_made(lease_ids, maker)
        return Reply()

    @concurrency_group("deliveries")
    def note_handing_in(self, lease_id: int, maker: str) -> Reply:
        self._book.note_handing_in(lease_id, maker)
        return Reply()

    @concurrency_group("deliveries")
    def note_progress(self, lease_ids: Sequence[int], maker: str) -> None:
        self._book.note_progress(lease_ids, maker)

    @concurrency_group("deliveries")
    def release(self, lease_id: int, maker: str) -> None:
        self._book.release(lease_id, maker)

    @concurrency_group("weights")
    def weights(self, version: int, gpu: str = "") -> Reply:
        """A reference to the weights of a version for a maker on that GPU, with their digest and probe; in a list, so
        that Ray does not resolve the reference."""
        try:
            kept = self._weights.fetch(version, owner="a maker", seconds=POLL_SECONDS)
        except WaitTimeoutError:
            return Reply()
        return Reply([*kept.tensors.offer(gpu), kept.probe])

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
        """Dismiss a maker. A repeated call, because the reply was lost, returns no leases, which blames none."""
        held = self._book.dismiss(maker)
        self._mailbox.dismiss(maker)
        with self._asking[maker]:  # a request under way is refused by the book, and is the last
            self._given.pop(maker, None)  # it holds weights
        self._asking.pop(maker, None)
        return held

    @concurrency_group("look")
    def overdue(self, seconds: float) -> dict[int, str]:
        return self._book.overdue(seconds)

    @concurrency_group("look")
    def snapshot(self) -> RunSnapshot:
        """A snapshot of the run, with all waits."""
        trainer = self._built.trainer
        return RunSnapshot.take("trainer_0", trainer, self._book, self._weights, has_ended=self._has_ended)

    @property
    def _book(self) -> LeaseBook:
        book = self._built.book
        assert book is not None, "rank 0 has it"
        return book

    @property
    def _weights(self) -> WeightStore:
        store = self._built.store
        assert store is not None, "rank 0 has it"
        return store
