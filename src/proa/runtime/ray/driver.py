"""`RayRuntime`: starts the actors, answers for the run's callbacks, replaces makers, and ends it all."""

from __future__ import annotations

import contextlib
import copy
import logging
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, cast

import ray

from ...data.state import LoopState
from ...lifecycle.manager import CallbackManager
from ...lifecycle.moments import MOMENTS, EventName
from ..fleet import Health, Member, Sign, back_off, enough
from ..local import RunFailedError, Supervision
from .hosts import MakerHost, TrainerHost
from .link import COSTLY, Answer, Interests, Question

log = logging.getLogger("proa.runtime")
_remote: Any = ray.remote  # its types do not know concurrency groups

START_SECONDS = 120.0
"""How long an actor may take to come up."""
GOODBYE_SECONDS = 20.0
"""How long the trainer may take to end a step after an interrupt."""
LOOK_SECONDS = 0.5
"""How often the driver looks after its makers."""


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Where actors run, and what each of them takes up."""

    namespace: str
    trainer_resources: dict[str, Any] = field(default_factory=dict)
    maker_resources: dict[str, Any] = field(default_factory=dict)
    min_makers: int = 1
    max_restarts: int = 10
    """Of one maker's place, before it is given up."""


@dataclass
class _Post:
    """A maker's place: who works there now, and since when nobody does."""

    member: Member
    actor: Any = None
    working: Any = None
    start_at: float = 0.0


class RayRuntime:
    """Runs one trainer and its makers as named actors, replacing makers that die or hang.

    `build_trainer` and `build_maker` run in the actors; they are pickled, and so is all that they hold.
    """

    def __init__(
        self,
        build_trainer: Callable[..., Any],
        build_maker: Callable[..., Any],
        *,
        makers: int,
        manager: CallbackManager,
        settings: RaySettings,
        supervision: Supervision,
        patience: float,
        output_dir: Path | None = None,
    ) -> None:
        self._build_trainer = build_trainer
        self._build_maker = build_maker
        self._manager = manager
        self._settings = settings
        self._supervision = supervision
        self._patience = patience
        self._posts = {f"maker_{number}": _Post(Member(f"maker_{number}")) for number in range(makers)}
        self._failures: dict[int | str, int] = {}
        self._fatal: BaseException | None = None
        self._raised_here: BaseException | None = None
        self._interrupted: list[str] = []
        self._trainer: Any = None
        self.state = LoopState(output_dir=output_dir)
        """What the driver knows of the trainer's state; one object, in every hook."""

    def run(self, total_steps: int, update_steps: int, train_epochs: int = 1) -> dict[str, Any]:
        """Train to the end and return what the header says of it. Whatever happens, no actor is left."""
        with self._signals_noted():
            try:
                self._trainer = self._start_trainer()
                for name in list(self._posts):
                    self._start(name)
                return self._drive(self._trainer.fit.remote(total_steps, update_steps, train_epochs))
            finally:
                self._end_everyone()

    # -- starting ------------------------------------------------------------------------------------

    def _start_trainer(self) -> Any:
        host = _remote(concurrency_groups=TrainerHost.GROUPS)(TrainerHost)
        options = {"num_cpus": 0, **self._settings.trainer_resources, "max_restarts": 0}
        actor = host.options(name="trainer_0", namespace=self._settings.namespace, **options).remote(
            self._build_trainer, self._interests(), self._patience
        )
        self._wait_for(actor.ready.remote(), "the trainer")
        return actor

    def _start(self, name: str) -> None:
        host = _remote(concurrency_groups=MakerHost.GROUPS)(MakerHost)
        options = {"num_cpus": 0, **self._settings.maker_resources, "max_restarts": 0}
        post = self._posts[name]
        post.actor = host.options(name=name, namespace=self._settings.namespace, **options).remote(
            self._build_maker, name, self._trainer, self._patience
        )
        post.working = post.actor.work.remote()

    def _wait_for(self, reference: Any, who: str) -> None:
        until = monotonic() + START_SECONDS
        while monotonic() < until:
            self._leave_if_interrupted()
            ready, _ = ray.wait([reference], timeout=LOOK_SECONDS)
            if ready:
                _get(reference, who)
                return
        raise RunFailedError(f"{who} did not come up within {START_SECONDS:g} s: are there resources for it?")

    def _interests(self) -> Interests:
        events = cast("list[EventName]", list(MOMENTS))
        wanted = {event for event in events if self._manager.wants(event)}
        costly = {
            (event, item)
            for event in wanted
            for item in COSTLY
            if item in MOMENTS[event].payload and self._manager.wants(event, item)
        }
        return Interests(frozenset[str](wanted), frozenset[tuple[str, str]](costly))

    # -- while it runs -------------------------------------------------------------------------------

    def _drive(self, training: Any) -> dict[str, Any]:
        asked_to_stop_at = 0.0
        while True:
            questions = self._ask_for_questions(training)
            for question in questions:
                self._hear(question)
            if not questions:
                ended, _ = ray.wait([training], timeout=0)
                if ended:
                    return self._finish(training)
            self._look_after_makers()
            if self._interrupted and not asked_to_stop_at:
                asked_to_stop_at = monotonic()
                self._trainer.stop.remote("interrupted", self._interrupted[0])
            if asked_to_stop_at and monotonic() - asked_to_stop_at > GOODBYE_SECONDS:
                self._leave_if_interrupted()

    def _ask_for_questions(self, training: Any) -> list[Question]:
        try:
            questions: list[Question] = ray.get(
                self._trainer.take_questions.remote(LOOK_SECONDS), timeout=self._patience
            )
            return questions
        except ray.exceptions.RayActorError as gone:
            _get(training, "the trainer")
            raise RunFailedError(f"the trainer died: {gone}") from gone

    def _finish(self, training: Any) -> dict[str, Any]:
        try:
            self._mirror(_get(training, "the trainer"))
        except RunFailedError as failure:
            if self._raised_here is not None:
                raise self._raised_here from None
            if self._fatal is not None:
                raise RunFailedError(f"the run cannot go on: {self._fatal}") from self._fatal
            raise failure
        self._leave_if_interrupted()
        summary: dict[str, Any] = ray.get(self._trainer.summary.remote(), timeout=self._patience)
        return summary

    def summary(self) -> dict[str, Any]:
        """What the trainer last said of itself, if it still can."""
        return {"steps_run": self.state.global_step} if self.state.global_step else {}

    # -- callbacks -----------------------------------------------------------------------------------

    def _hear(self, question: Question) -> None:
        """Call the driver's listeners for a moment of the trainer, and tell it what they did."""
        payload = dict(question.payload)
        if isinstance(payload.get("state"), dict):
            self._mirror(payload["state"])
            payload["state"] = self.state
        before = dict(self.state.metrics)
        error: BaseException | None = None
        try:
            self._manager.fire(question.event, *payload.values())
        except Exception as raised:
            self._raised_here = error = raised
        except BaseException as raised:  # an interrupt in a callback is an interrupt of the run
            self._interrupted.append(type(raised).__name__)
        self._trainer.answer.remote(question.number, self._answer(before, error))

    def _answer(self, before: dict[str, Any], error: BaseException | None) -> Answer:
        state = self.state
        changed = {name: value for name, value in state.metrics.items() if before.get(name, self) is not value}
        stop = (state.stop_reason, state.stopped_by) if state.should_stop else (None, None)
        return Answer(*stop, metrics=changed, error=None if error is None else _portable(error))

    def _mirror(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name not in ("metrics", "output_dir"):
                self.state.__dict__[name] = value
        self.state.metrics.clear()
        self.state.metrics.update(values.get("metrics", {}))

    # -- makers --------------------------------------------------------------------------------------

    def _look_after_makers(self) -> None:
        if self._fatal is not None:
            return
        working = {post.working: name for name, post in self._posts.items() if post.working is not None}
        ended, _ = ray.wait(list(working), num_returns=len(working), timeout=0) if working else ([], [])
        for reference in ended:
            self._see_off(working[reference], reference)
        asked = self._trainer.overdue.remote(self._supervision.lease_timeout)
        overdue: dict[int, str] = _get(asked, "the trainer", timeout=self._patience)
        for lease_id, name in overdue.items():
            if name in self._posts and self._posts[name].actor is not None:
                hung = f"{name} has had lease {lease_id} for {self._supervision.lease_timeout:g} s"
                self._lose(name, hung, lease_id)
        for name, post in list(self._posts.items()):
            if post.actor is None and post.member.health is Health.RESTARTING and monotonic() >= post.start_at:
                self._start(name)
                self._manager.fire("maker.recreated", name, post.member.reason)

    def _see_off(self, name: str, reference: Any) -> None:
        """A maker's work ended: because the run did, or because something happened to it."""
        try:
            ray.get(reference)
            self._posts[name].working = None
        except Exception as error:
            cause: Any = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
            self._lose(name, f"{name}: {_in_short(cause)}", getattr(cause, "lease_id", None))

    def _lose(self, name: str, reason: str, lease_id: int | None) -> None:
        post = self._posts.pop(name)
        with contextlib.suppress(Exception):
            ray.kill(post.actor)
        self._trainer.dismiss.remote(name)
        self._manager.fire("maker.lost", name, reason)
        place = name.partition("+")[0]
        culprit: int | str = place if lease_id is None else lease_id
        self._failures[culprit] = self._failures.get(culprit, 0) + 1
        lost = post.member.after(Sign.LOST, reason)
        most = self._supervision.lease_attempts if lease_id is not None else self._settings.max_restarts
        if self._failures[culprit] >= most:
            others = [other.member for other in self._posts.values()]
            if lease_id is not None or not enough(others, self._settings.min_makers):
                self._give_up(RunFailedError(reason))
            return
        log.warning("%s is replaced: %s", name, reason)
        member = lost.after(Sign.REPLACED)
        again = f"{place}+{member.restarts}"
        self._posts[again] = _Post(
            Member(again, member.health, member.restarts, reason), start_at=monotonic() + back_off(member.restarts - 1)
        )

    def _give_up(self, error: BaseException) -> None:
        self._fatal = error
        self._trainer.close.remote(str(error))

    # -- ending --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Signals are noted and acted on in the loop: an exception in the middle of a call to Ray spoils it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._note_signal) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _note_signal(self, number: int, _frame: Any) -> None:
        self._interrupted.append(signal.Signals(number).name)

    def _leave_if_interrupted(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt(self._interrupted[0])

    def _end_everyone(self) -> None:
        for actor in [*(post.actor for post in self._posts.values()), self._trainer]:
            if actor is not None:
                with contextlib.suppress(Exception):
                    ray.kill(actor)


def _get(reference: Any, who: str, *, timeout: float | None = None) -> Any:
    """A result, or the failure in words. Without a timeout, of a call that is known to have ended."""
    try:
        return ray.get(reference, timeout=timeout)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause or error
        raise RunFailedError(f"{type(cause).__name__}: {cause}") from cause
    except ray.exceptions.RayError as error:
        raise RunFailedError(f"{who} died: {error}") from error


def _in_short(error: BaseException) -> str:
    """Ray explains a death at length: what happened is in the first line, and why in the detail's first sentence."""
    first, _, rest = str(error).partition("\n")
    _, found, detail = rest.partition("Worker exit detail: ")
    return f"{first} {detail.partition('. ')[0]}" if found else first


def _portable(error: BaseException) -> BaseException:
    """The error itself if it can travel, else its words."""
    try:
        copy.copy(error)  # some cannot be made again from what they keep
        pickle.dumps(error)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
