"""The runtime `local`: the trainer in the caller's thread, makers in threads beside it, and their supervisor."""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import Protocol

from ..actors.waiting import ClosedError, LongWaits, WaitTimeoutError
from ..leases.book import LeaseBook
from ..record.live import ActorView, LiveFile, LiveView
from ..roles.maker import ExperienceMakerHolder
from ..roles.trainer import DetachedTrainer
from ..roles.weights import WeightStore
from .supervisor import Failure, Limits, MakerEnd, RunFailedError, Supervisor, describe
from .views import RunSnapshot, view_maker

log = logging.getLogger("proa.runtime")

SUPERVISION_SECONDS = 0.05
"""How often the supervisor checks on everyone."""
GOODBYE_SECONDS = 5.0
"""How long makers may take to notice that the run is over; one that hangs ends with the process."""


class MakerBuilder(Protocol):
    """Builds the makers of a run."""

    def make(self, name: str) -> ExperienceMakerHolder:
        """A maker of that name; called again for each replacement."""


class LocalRuntime:
    """Runs one trainer and its makers to the end, replacing makers that die or hang.

    `watch` shows the run from time to time, and once more when everyone has ended.
    """

    def __init__(
        self,
        trainer: DetachedTrainer,
        builder: MakerBuilder,
        *,
        makers: int,
        book: LeaseBook,
        store: WeightStore,
        limits: Limits | None = None,
        watch: LiveFile | None = None,
    ) -> None:
        self._trainer = trainer
        self._book = book
        self._book.makers = makers
        self._store = store
        self._watch = watch
        self._maker_threads = MakerThreads(builder, book, store)
        self._supervisor = Supervisor(
            makers, self._maker_threads, manager=trainer.manager, limits=limits or Limits()
        )  # fmt: skip
        self._failure: Failure | None = None
        self._over = threading.Event()
        self._long_waits = LongWaits(trainer.name)

    def run(self, total_steps: int, update_steps: int, train_epochs: int = 1) -> None:
        """Train to the end. However it ends, everyone is stopped, and remaining samples are in the ledger as
        dropped."""
        supervision = threading.Thread(target=self._supervise, name="proa supervisor", daemon=True)
        try:
            self._supervisor.start()
            supervision.start()
            self._trainer.manager.begin_training()
            self._maker_threads.gate.set()
            self._trainer.fit(total_steps, update_steps, train_epochs)
        except ClosedError as closed:
            cause = self._failure.cause if self._failure is not None else None
            raise RunFailedError(f"the run cannot continue: {closed}") from cause
        except WaitTimeoutError as timeout:
            others = "".join(f"; {wait}" for wait in self._store.room.waits())  # the error names waits at the book
            raise RunFailedError(f"no progress: {timeout}{others}") from timeout
        finally:
            self._over.set()
            self._supervisor.close()
            self._book.close("the run is over")
            self._maker_threads.gate.set()
            if supervision.ident is not None:
                supervision.join(GOODBYE_SECONDS)
            self._supervisor.end(GOODBYE_SECONDS)
            if not supervision.is_alive():  # one writer at a time
                self._supervisor.collect_ends()
                self._show()

    def _supervise(self) -> None:
        supervisor = self._supervisor
        while not self._over.wait(SUPERVISION_SECONDS):
            try:
                if supervisor.check():
                    self._show()  # a replacement may take a while to start
                if supervisor.failure is not None:
                    self._give_up(supervisor.failure)
                    return
                supervisor.start_due()
                self._mention_long_waits()
                if self._watch is not None and self._watch.due():
                    self._show()
            except BaseException as error:  # a supervisor that dies would leave the trainer waiting
                self._give_up(Failure.of(error))
                return

    def _give_up(self, failure: Failure) -> None:
        self._failure = failure
        self._over.set()
        self._book.close(failure.reason, step_continues=True)

    def _mention_long_waits(self) -> None:
        try:
            waits = [*self._book.room.waits(), *self._store.room.waits()]
            lasting = [(wait.owner, wait.reason(), monotonic() - wait.since) for wait in waits]
            self._long_waits.look(lasting, self._supervisor.activities)
        except Exception as error:  # only for information, so no reason to end a run
            log.debug("long waits could not be checked: %s", error)

    def _show(self) -> None:
        if self._watch is not None:
            self._watch.look(self._view)

    def _view(self) -> LiveView:
        trainer = self._trainer
        snapshot = RunSnapshot.take(trainer.name, trainer, self._book, self._store, has_ended=self._over.is_set())
        return snapshot.live_view("local", [snapshot.trainer], self._supervisor.views())


class MakerThread:
    """A maker in a thread.

    A thread cannot be ended from outside: a dismissed one ends when it next asks for a lease, and one that hangs ends
    with the process.
    """

    log = ""
    has_weights = True
    """In the same process it cannot have missed any."""
    may_have_begun = True

    def __init__(
        self, name: str, maker: ExperienceMakerHolder, book: LeaseBook, store: WeightStore, gate: threading.Event
    ) -> None:
        self._maker = maker
        self._gate = gate
        self._end: MakerEnd | None = None
        self._name = name
        self._thread = threading.Thread(target=self._work, args=(book, store), name=name, daemon=True)
        self._thread.start()

    def _work(self, book: LeaseBook, store: WeightStore) -> None:
        reason, lease_id, raised = "", None, None
        self._gate.wait()
        try:
            self._maker.work(book, store)
        except ClosedError:
            pass  # the run is over
        except BaseException as error:
            reason, lease_id, raised = describe(error), getattr(error, "lease_id", None), error
        self._end = MakerEnd(reason, lease_id, self._maker.manager.errors, raised)

    @property
    def view(self) -> ActorView:
        return view_maker(self._name, self._maker, has_ended=self._end is not None)

    def has_started(self) -> bool:
        return True

    def look(self) -> bool:
        return True

    def ended(self) -> MakerEnd | None:
        return self._end

    def distrust_weights(self) -> bool:
        self._maker.distrust_weights()
        return True

    def stop(self) -> None:
        pass

    def wait(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def kill(self) -> bool:
        return False

    def describe_log(self) -> str:
        return ""


class MakerThreads:
    """Makers in threads of this process: every slot is like any other."""

    slots_differ = False

    def __init__(self, builder: MakerBuilder, book: LeaseBook, store: WeightStore) -> None:
        self._builder = builder
        self._book = book
        self._store = store
        self.gate = threading.Event()
        """Opened when the run begins; before it makers get ready, without firing moments."""

    def start(self, name: str, slot: int) -> MakerThread:
        return MakerThread(name, self._builder.make(name), self._book, self._store, self.gate)

    def overdue(self, seconds: float) -> dict[int, str]:
        return self._book.overdue(seconds)

    def dismiss(self, name: str) -> list[int]:
        return self._book.dismiss(name)
