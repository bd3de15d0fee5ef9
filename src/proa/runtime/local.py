"""The runtime `local`: the trainer in the caller's thread, makers in threads beside it, and a supervisor."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from ..actors.waiting import ClosedError, LeaseFailedError, LongWaits, Wait, WaitTimeoutError
from ..errors import ProaError
from ..leases.book import LeaseBook
from ..lifecycle.manager import CallbackManager
from ..record.live import ActorView, LiveFile, LiveView, WaitView
from ..roles.maker import ExperienceMakerHolder
from ..roles.trainer import DetachedTrainer
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
    restarts: int = 0
    reason: str = ""
    """Why the one before was lost; and, once this one is, why this one was."""
    lost: bool = False


class LocalRuntime:
    """Runs one trainer and its makers to the end, replacing makers that die or hang.

    `make_maker` builds a maker by name; it is called again for each replacement. `watch` is shown how things stand
    from time to time, and once more when everyone has ended.
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
        watch: LiveFile | None = None,
    ) -> None:
        self._trainer = trainer
        self._make_maker = make_maker
        self._names = [f"maker_{number}" for number in range(makers)]
        self._book = book
        self._store = store
        self._callbacks = callbacks or trainer.manager
        self._supervision = supervision or Supervision()
        self._watch = watch
        self._posts: dict[str, _Post] = {}
        self._failures: dict[int | str, int] = {}
        self._replaced = 0
        self._fatal: BaseException | None = None
        self._over = threading.Event()
        self._long_waits = LongWaits(trainer.name)

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
            if not supervisor.is_alive():  # one writer at a time
                self._look()

    # -- makers --------------------------------------------------------------------------------------

    def _start(self, name: str, restarts: int = 0, reason: str = "") -> None:
        holder = self._make_maker(name)
        post = _Post(name, holder, threading.Thread(name=name, daemon=True), restarts=restarts, reason=reason)
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
                self._mention_long_waits()
                if self._watch is not None and self._watch.due():
                    self._look()
            except BaseException as error:  # a supervisor that dies would leave the trainer waiting
                self._give_up(error)
                return

    def _mention_long_waits(self) -> None:
        try:
            waits = [(wait.owner, wait.reason(), monotonic() - wait.since) for wait in self._waits()]
            self._long_waits.look(waits, self._doings)
        except Exception as error:  # it only tells people something: no reason to end a run
            log.debug("long waits could not be looked at: %s", error)

    def _replace(self, post: _Post, reason: str, error: BaseException) -> None:
        if self._over.is_set():
            return
        self._book.dismiss(post.name)
        post.lost, post.reason = True, reason
        self._look()  # a new one may take a while to come up
        self._callbacks.fire("maker.lost", post.name, reason)
        # What no lease is to blame for is counted by the maker's place.
        culprit = getattr(error, "lease_id", _place(post.name))
        self._failures[culprit] = self._failures.get(culprit, 0) + 1
        if self._failures[culprit] >= self._supervision.lease_attempts:
            self._give_up(error)
            return
        log.warning("%s is replaced: %s", post.name, reason, exc_info=error)
        # Under a name of its own: what the old one may still deliver must not be taken for the new one's.
        self._replaced += 1
        del self._posts[post.name]
        name = f"{_place(post.name)}+{self._replaced}"
        self._start(name, post.restarts + 1, reason)
        self._callbacks.fire("maker.recreated", name, reason)

    def _give_up(self, error: BaseException) -> None:
        self._fatal = error.__cause__ or error
        self._over.set()
        self._book.close(_reason(error), step_goes_on=True)

    def _doings(self) -> list[str]:
        looks = ((post.name, post.holder.activity.look()) for post in self._posts.values())
        return [f"{name}: {look.what}, for {time.time() - look.since:.0f} s" for name, look in looks]

    def _whereabouts(self) -> str:
        """Who waited for whom, for the message that ends a run without progress."""
        return "; ".join(map(str, self._waits())) or "nobody else was waiting"

    # -- looking -------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._watch is not None:
            self._watch.look(self._view)

    def _view(self) -> LiveView:
        state = self._trainer.state
        with self._book.room:  # else it might not close
            ledger = self._book.ledger.as_dict()
        waits = [WaitView(wait.owner, wait.reason(), monotonic() - wait.since) for wait in self._waits()]
        posts = sorted(self._posts.values(), key=lambda post: self._names.index(_place(post.name)))
        return LiveView(
            time=time.time(),
            runtime="local",
            step=state.global_step,
            of=max(0, state.max_steps),
            episode=state.episode,
            version=state.policy_version,
            versions=self._store.versions,
            ledger=ledger,
            waits=waits,
            actors=[self._trainer_view(ledger["tokens"]["trained"], waits), *map(_maker_view, posts)],
        )

    def _trainer_view(self, tokens: int, waits: list[WaitView]) -> ActorView:
        trainer = self._trainer
        doing = trainer.activity.look()
        what, since = doing.what, doing.since
        for wait in waits:
            if wait.owner == trainer.name:
                what, since = f"waiting for {wait.reason}", time.time() - wait.seconds
        return ActorView(
            trainer.name,
            "trainer",
            doing="ended" if self._over.is_set() else what,
            since=since,
            version=trainer.state.policy_version,
            tokens=tokens,
            spent=doing.spent,
        )

    def _waits(self) -> list[Wait]:
        return [*self._book.room.waits(), *self._store.room.waits()]


def _maker_view(post: _Post) -> ActorView:
    doing = post.holder.activity.look()
    return ActorView(
        post.name,
        "maker",
        health="dead" if post.lost or post.error is not None else "healthy",
        doing="ended" if post.ended.is_set() else doing.what,
        since=doing.since,
        version=post.holder.loaded_version,
        leases=post.holder.leases_made,
        tokens=post.holder.tokens_made,
        restarts=post.restarts,
        reason=post.reason,
        spent=doing.spent,
        callback_errors=post.holder.manager.errors,
    )


def _place(name: str) -> str:
    """The place of a maker; who comes after another has a name of its own, at the same place."""
    return name.partition("+")[0]


def _reason(error: BaseException) -> str:
    cause = error.__cause__
    return f"{error}" if cause is None else f"{error} ({type(cause).__name__})"
