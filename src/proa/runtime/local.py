"""The runtime `local`: the trainer in the caller's thread, makers in threads beside it, and a supervisor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from ..errors import ProaError
from ..lifecycle.manager import CallbackManager
from ..roles.lease_book import LeaseBook
from ..roles.maker import ExperienceMakerHolder
from ..roles.trainer import DetachedTrainer
from ..roles.waiting import ClosedError, LeaseFailedError, WaitTimeoutError
from ..roles.weights import WeightStore

log = logging.getLogger("proa.runtime")

SUPERVISION_SECONDS = 0.05
GOODBYE_SECONDS = 5.0
"""How long makers may take to notice that the run is over; one that hangs is left to die with the process."""


class RunFailedError(ProaError):
    """The run cannot go on; the message names the cause."""


@dataclass
class Supervision:
    """When a maker is given up, and when the run is."""

    lease_timeout: float = 300.0
    """A lease that takes longer is handed to another maker, and its maker is replaced."""
    lease_attempts: int = 3
    """So many makers may fail on one lease before the run fails with what they raised."""


@dataclass
class _Post:
    """A maker's place: who works there now, in which thread, and how it ended."""

    name: str
    holder: ExperienceMakerHolder
    thread: threading.Thread
    ended: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class LocalRuntime:
    """Runs one trainer and its makers to the end, replacing makers that die or hang.

    `make_maker` builds a maker by name; it is called again for each replacement.
    """

    def __init__(
        self,
        trainer: DetachedTrainer,
        make_maker: Callable[[str], ExperienceMakerHolder],
        *,
        makers: int,
        book: LeaseBook,
        store: WeightStore,
        callbacks: CallbackManager | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        self._trainer = trainer
        self._make_maker = make_maker
        self._names = [f"maker_{number}" for number in range(makers)]
        self._book = book
        self._store = store
        self._callbacks = callbacks or trainer.manager
        self._supervision = supervision or Supervision()
        self._posts: dict[str, _Post] = {}
        self._failures: dict[int | str, int] = {}
        self._replaced = 0
        self._fatal: BaseException | None = None
        self._over = threading.Event()

    def run(self, total_steps: int, update_steps: int, train_epochs: int = 1) -> None:
        """Train to the end. Whatever ends it, everyone is told, and what was left over is in the ledger."""
        supervisor = threading.Thread(target=self._supervise, name="proa supervisor", daemon=True)
        try:
            for name in self._names:
                self._start(name)
            supervisor.start()
            self._trainer.fit(total_steps, update_steps, train_epochs)
        except ClosedError as closed:
            raise RunFailedError(f"the run cannot go on: {closed}") from self._fatal
        except WaitTimeoutError as timeout:
            raise RunFailedError(f"no progress: {timeout}; {self._whereabouts()}") from timeout
        finally:
            self._over.set()
            self._book.close("the run is over")
            if supervisor.ident is not None:
                supervisor.join(GOODBYE_SECONDS)
            self._say_goodbye()

    # -- makers --------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        holder = self._make_maker(name)
        post = _Post(name, holder, threading.Thread(name=name, daemon=True))
        post.thread = threading.Thread(target=self._work, args=(post,), name=name, daemon=True)
        self._posts[name] = post
        post.thread.start()

    def _work(self, post: _Post) -> None:
        try:
            post.holder.work(self._book, self._store)
        except ClosedError:
            pass  # the run is over
        except BaseException as error:
            post.error = error
        finally:
            post.ended.set()

    def _say_goodbye(self) -> None:
        until = monotonic() + GOODBYE_SECONDS
        for post in self._posts.values():
            post.thread.join(max(0.0, until - monotonic()))
            if post.thread.is_alive():
                log.warning("%s did not end with the run and is left behind", post.name)

    # -- supervision ---------------------------------------------------------------------------------

    def _supervise(self) -> None:
        while not self._over.wait(SUPERVISION_SECONDS):
            try:
                for post in list(self._posts.values()):
                    if post.error is not None:
                        self._replace(post, _reason(post.error), post.error)
                for lease_id, name in self._book.overdue(self._supervision.lease_timeout).items():
                    self._book.release(lease_id, name)
                    hung = f"{name} has had lease {lease_id} for {self._supervision.lease_timeout:g} s"
                    if name in self._posts:  # else it was replaced before
                        self._replace(self._posts[name], hung, LeaseFailedError(hung, lease_id))
            except BaseException as error:  # a supervisor that dies would leave the trainer waiting
                self._give_up(error)
                return

    def _replace(self, post: _Post, reason: str, error: BaseException) -> None:
        if self._over.is_set():
            return
        self._book.dismiss(post.name)
        self._callbacks.fire("maker.lost", post.name, reason)
        # What no lease is to blame for is counted by the maker's place.
        culprit = getattr(error, "lease_id", post.name.partition("+")[0])
        self._failures[culprit] = self._failures.get(culprit, 0) + 1
        if self._failures[culprit] >= self._supervision.lease_attempts:
            self._give_up(error)
            return
        log.warning("%s is replaced: %s", post.name, reason, exc_info=error)
        # Under a name of its own: what the old one may still deliver must not be taken for the new one's.
        self._replaced += 1
        del self._posts[post.name]
        name = f"{post.name.partition('+')[0]}+{self._replaced}"
        self._start(name)
        self._callbacks.fire("maker.recreated", name, reason)

    def _give_up(self, error: BaseException) -> None:
        self._fatal = error.__cause__ or error
        self._over.set()
        self._book.close(_reason(error), step_goes_on=True)

    def _whereabouts(self) -> str:
        """Who waited for whom, for the message that ends a run without progress."""
        waits = [*self._book.room.waits(), *self._store.room.waits()]
        return "; ".join(map(str, waits)) or "nobody else was waiting"


def _reason(error: BaseException) -> str:
    cause = error.__cause__
    return f"{error}" if cause is None else f"{error} ({type(cause).__name__})"
