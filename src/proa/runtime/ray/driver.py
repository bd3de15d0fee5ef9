"""`RayRuntime`: starts the actors, calls the run's callbacks, supervises makers, and ends everything."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import ray
from ray.actor import ActorHandle

from ...actors.interruption import Interruption
from ...actors.waiting import ClosedError, LongWaits, WaitTimeoutError
from ...callbacks.performance import Performance
from ...data.state import LoopState
from ...errors import ProaError
from ...learning.replicas import ReplicaError
from ...lifecycle.copies import PackedState
from ...lifecycle.manager import CallbackManager
from ...record.live import ActorView, LiveFile, LiveView
from ..supervisor import START_SECONDS, Limits, RunFailedError, Supervisor
from ..views import RunSnapshot
from .calls import LongCall, UnreachableError, Watched, request, summarize
from .link import Interests
from .listening import Listening
from .maker_host import BuildMaker
from .makers import MakerActors
from .output import ActorOutputs
from .places import Places, RaySettings
from .probe import check_connected_cluster
from .replies import Location
from .trainer_host import BuildTrainer, Outcome, RankHost, TrainerHost

log = logging.getLogger("proa.runtime")
_remote: Any = ray.remote  # its types do not know concurrency groups

INTERRUPT_SECONDS = 20.0
"""How long the trainer may take to end after a second interrupt."""
END_SECONDS = 5.0
"""How long makers may take to end with the run."""
KILL_SECONDS = 2.0
"""How long a maker's process may take to end when Ray stops it."""
RAYLET_SECONDS = 5.0
"""How often the cluster is checked during a wait for an actor."""
CHECK_SECONDS = 0.5
"""How often the driver checks on everyone."""


class TrainerDiedError(RunFailedError):
    """A trainer's process is gone; the run can continue from its last checkpoint."""


class RayRuntime:
    """Runs trainers and makers as named actors, replacing makers that die or hang.

    `build_trainer` and `build_maker` run in the actors; they are pickled with everything that they hold.
    """

    def __init__(
        self,
        build_trainer: BuildTrainer,
        build_maker: BuildMaker,
        *,
        makers: int,
        trainers: int = 1,
        manager: CallbackManager,
        settings: RaySettings,
        limits: Limits,
        patience: float,
        backend: str = "gloo",
        output_dir: Path | None = None,
        live: LiveFile | None = None,
        services: Mapping[str, Callable[..., Any]] | None = None,
        interruption: Interruption | None = None,
        outputs: ActorOutputs | None = None,
        makers_have_copies: bool = False,
    ) -> None:
        self._build_trainer = build_trainer
        self._build_maker = build_maker
        self._counts = {"trainers": trainers, "makers": makers}
        self._manager = manager
        self._settings = settings
        self._limits = limits
        self._patience = patience
        self._backend = backend
        self._live = live
        self._listening = Listening(manager, LoopState(output_dir=output_dir), services)
        self._trainers: list[ActorHandle[Any]] = []  # a `TrainerHost`, then `RankHost`s
        self._locations: list[Location] = []
        self._watched: list[Watched[ActorView]] = []
        self._training: list[LongCall[Outcome]] = []
        self._supervisor: Supervisor | None = None
        self._makers: MakerActors | None = None
        self._outputs = outputs or ActorOutputs(is_shown=False)
        self._makers_have_copies = makers_have_copies
        self._fatal: Exception | None = None
        self._interruption = interruption or Interruption()
        self._checked_at = 0.0
        self._long_waits = LongWaits("the trainer" if trainers == 1 else "trainer_0")
        self.summary: dict[str, Any] = {}
        """Entries about the run's progress, for its header."""
        self.copies: dict[str, Sequence[PackedState]] = {}
        """At the end, the state of callbacks' copies in each actor, as far as it is known."""
        self.performance: dict[str, Performance] = {}
        """At the end, the measurements of evaluators in each actor."""
        self.independent_engines: list[bool | None] = []
        """For each maker, whether its engine decodes every sequence as if it were alone."""
        self._trainer_errors: Counter[str] = Counter()

    @property
    def state(self) -> LoopState:
        """The driver's copy of the trainer's state; the same object in every hook."""
        return self._listening.state

    @property
    def callback_errors(self) -> dict[str, int]:
        """How often callbacks in actors failed, as far as that was reported."""
        makers = self._supervisor.callback_errors if self._supervisor is not None else Counter[str]()
        return dict(self._trainer_errors + makers)

    def run(self, total_steps: int, update_steps: int, train_epochs: int = 1) -> None:
        """Train to the end. On every way out, open moments are ended and all actors are stopped."""
        with self._interruption.listening(), self._interruption.polling(), self._listening.attached():
            places = Places(self._settings, **self._counts)
            try:
                self._start(places)
                self._training = [
                    LongCall(f"trainer_{rank}", self._patience, trainer.fit, total_steps, update_steps, train_epochs)
                    for rank, trainer in enumerate(self._trainers)
                ]
                self._finish(self._drive())
            except BaseException as error:
                self._listening.end_open_moments(error)
                raise
            finally:
                with contextlib.suppress(Exception):  # the cluster may be gone
                    self._collect_copies()
                if self._supervisor is not None:
                    self._supervisor.end(KILL_SECONDS)
                for trainer in self._trainers:
                    with contextlib.suppress(Exception):
                        ray.kill(trainer)
                with contextlib.suppress(Exception):
                    self._outputs.finish()
                places.release()

    # -- starting ------------------------------------------------------------------------------------

    def _start(self, places: Places) -> None:
        """Start trainers and makers at once, to get ready in parallel."""
        reserved = places.reserve()
        if reserved is not None:
            self._wait_for(
                lambda: bool(ray.wait([reserved], timeout=0)[0]), lambda: "the placement", START_SECONDS
            )  # fmt: skip
        interests = self._listening.interests()
        self._trainers = self._start_trainers(places, interests)
        self._makers = MakerActors(
            self._build_maker,
            self._trainers[0],
            places=places,
            interests=interests,
            patience=self._patience,
            outputs=self._outputs,
            has_copies=self._makers_have_copies,
        )
        self._supervisor = Supervisor(
            self._counts["makers"], self._makers, manager=self._manager, limits=self._limits
        )  # fmt: skip
        self._supervisor.start()
        self._locations = self._call_trainers("ready", START_SECONDS)
        for rank, location in enumerate(self._locations):
            self._outputs.follow(f"trainer_{rank}", location)
        first, *others = self._trainers
        self._watched = [Watched("a trainer", self._patience, other.view) for other in others]
        address = request(first.address, who="trainer_0", seconds=START_SECONDS) if others else None
        self._call_trainers("prepare", None, address)

    def _start_trainers(self, places: Places, interests: Interests) -> list[ActorHandle[Any]]:
        first = _remote(concurrency_groups=TrainerHost.GROUPS)(TrainerHost)
        other = _remote(concurrency_groups=RankHost.GROUPS)(RankHost)
        size = self._counts["trainers"]
        common = (size, self._backend, self._patience, self._outputs.is_shown)
        return [
            first.options(**places.trainer_options(0)).remote(self._build_trainer, interests, *common),
            *(
                other.options(**places.trainer_options(rank)).remote(self._build_trainer, rank, *common)
                for rank in range(1, size)
            ),
        ]

    def _call_trainers(self, method: str, seconds: float | None, *arguments: Any) -> list[Any]:
        """Every trainer's reply. Calls that do work have no deadline (None), and only a death ends them early."""
        calls: list[LongCall[Any]] = [
            LongCall(f"trainer_{rank}", self._patience, getattr(trainer, method), *arguments)
            for rank, trainer in enumerate(self._trainers)
        ]
        replies = _Replies(calls)
        self._wait_for(replies.are_complete, lambda: replies.awaited, seconds)
        return [call.value for call in calls]

    def _wait_for(self, ready: Callable[[], bool], who: Callable[[], str], seconds: float | None) -> None:
        until = None if seconds is None else monotonic() + seconds
        look_at = monotonic() + RAYLET_SECONDS
        while not ready():
            self._raise_interrupt()
            if monotonic() > look_at:
                check_connected_cluster()  # with a dead raylet nothing starts
                look_at = monotonic() + RAYLET_SECONDS
            if until is not None and monotonic() > until:
                raise RunFailedError(f"{who()} did not start within {seconds:g} s: are there resources for it?")
            self._outputs.show()
            time.sleep(0.05)

    # -- while it runs -------------------------------------------------------------------------------

    def _drive(self) -> Outcome:
        """Answer questions and check on everyone until rank 0 has ended."""
        forwarding: LongCall[None] | None = None
        leave_at = float("inf")
        while True:
            anything_asked = self._exchange(CHECK_SECONDS)
            self._outputs.show()
            try:
                if not anything_asked and self._training[0].ended():
                    return self._training[0].value
                if self._interruption.reason and forwarding is None:  # rank 0 tells the others
                    first, reason = self._trainers[0], self._interruption.reason
                    forwarding = LongCall("trainer_0", self._patience, first.interrupt, reason)
                if forwarding is not None:
                    forwarding.ended()  # repeats it if it was lost
            except UnreachableError as error:
                raise RunFailedError(str(error)) from error
            except ray.exceptions.RayError as error:
                raise self._trainer_death(0, error) from error
            if monotonic() - self._checked_at > CHECK_SECONDS:
                self._check()
            if self._interruption.at_once and leave_at == float("inf"):
                leave_at = monotonic() + INTERRUPT_SECONDS
                for trainer in self._trainers:
                    trainer.interrupt_now.remote("interrupted")
            if monotonic() > leave_at:
                self._raise_interrupt()

    def _exchange(self, seconds: float) -> bool:
        """Send the last answers and answer new questions; returns whether there were any."""
        try:
            first, answers = self._trainers[0], self._listening.answers
            questions = request(first.exchange, answers, seconds, who="trainer_0", seconds=seconds + self._patience)
        except UnreachableError as error:
            raise RunFailedError(str(error)) from error
        except ray.exceptions.RayError as error:
            raise self._trainer_death(0, error) from error
        self._listening.answers = {question.key: self._listening.answer(question) for question in questions}
        for name in self._listening.interrupts():
            self._interruption.ask(name)
        return bool(questions)

    def _check(self) -> None:
        """Check on the other trainers, the makers and all waits."""
        self._checked_at = monotonic()
        supervisor, anybody_lost = self._started_supervisor, False
        try:
            snapshot = self._snapshot(self._patience)
            self._check_other_trainers()
            if self._fatal is None:
                anybody_lost = supervisor.check()
        except UnreachableError as error:
            raise RunFailedError(str(error)) from error
        except ray.exceptions.RayError as error:
            raise self._trainer_death(0, error) from error
        waits = [(wait.owner, wait.reason, wait.seconds) for wait in snapshot.waits]
        self._long_waits.look(waits, supervisor.activities)
        if self._live is not None and (self._live.due() or anybody_lost):
            self._live.look(lambda: self._view(snapshot))
        if supervisor.failure is not None:
            self._give_up(RunFailedError(f"the run cannot continue: {supervisor.failure.reason}"))
        if self._fatal is None:
            supervisor.start_due()

    def _snapshot(self, seconds: float) -> RunSnapshot:
        snapshot: RunSnapshot = request(self._trainers[0].snapshot, who="trainer_0", seconds=seconds)
        return snapshot

    @property
    def _started_supervisor(self) -> Supervisor:
        assert self._supervisor is not None, "it is started with the run"
        return self._supervisor

    def _check_other_trainers(self) -> None:
        """End the run if another trainer is gone, as each computes a share of every batch."""
        with contextlib.suppress(ray.exceptions.RayError):
            for watched in self._watched:
                watched.look()
        for rank, call in enumerate(self._training[1:], start=1):
            try:
                if call.ended() and call.value.error is not None:
                    self._give_up(self._trainer_error(rank, call.value))
            except ray.exceptions.RayError as error:
                self._give_up(self._trainer_death(rank, error))

    def _give_up(self, error: Exception) -> None:
        if self._fatal is not None or isinstance(error, ReplicaError):  # a consequence of another trainer's failure
            return
        self._fatal = error
        with contextlib.suppress(UnreachableError, ray.exceptions.RayError):
            request(self._trainers[0].close, str(error), who="trainer_0", seconds=self._patience)

    def _view(self, snapshot: RunSnapshot) -> LiveView:
        trainers = [snapshot.trainer, *(watched.latest for watched in self._watched if watched.latest is not None)]
        trainers = [replace(view, log=self._locations[rank].log) for rank, view in enumerate(trainers)]
        return snapshot.live_view("ray", trainers, self._started_supervisor.views())

    # -- ending --------------------------------------------------------------------------------------

    def _finish(self, outcome: Outcome) -> None:
        """Wait for all other actors to end; then the run ends as rank 0 did."""
        self._listening.mirror(outcome.state)
        self.summary = outcome.summary
        self._await_ends()
        for call in self._training:
            with contextlib.suppress(ray.exceptions.RayError):
                if call.ended():
                    self._trainer_errors.update(call.value.summary.get("callback_errors", {}))
        if outcome.error is not None:  # else an interrupt came too late to change anything
            self._raise_interrupt()
            self._check_other_trainers()  # one of them may be the cause
            raise self._listening.raised or self._fatal or self._trainer_error(0, outcome)

    def _await_ends(self) -> None:
        until, others, supervisor = monotonic() + END_SECONDS, self._training[1:], self._started_supervisor
        supervisor.collect_ends()
        with contextlib.suppress(RunFailedError, UnreachableError, ray.exceptions.RayError):
            while monotonic() < until and (supervisor.is_unfinished or not all(call.ended() for call in others)):
                self._exchange(0.05)
                self._outputs.show()
                supervisor.collect_ends()
            snapshot = self._snapshot(END_SECONDS)
            if self._live is not None:
                self._live.look(lambda: self._view(snapshot))

    def _collect_copies(self) -> None:
        """Collect the state and measurements of callbacks that actors have reported."""
        for call in self._training:
            with contextlib.suppress(ray.exceptions.RayError, UnreachableError):
                if call.ended():
                    self.copies[call.who] = call.value.copies
                    if call.value.performance is not None:
                        self.performance[call.who] = call.value.performance
        for maker in self._makers.started if self._makers is not None else ():
            self.copies[maker.name] = maker.copies
            self.independent_engines.append(maker.is_independent)
            if maker.performance is not None:
                self.performance[maker.name] = maker.performance

    def _trainer_error(self, rank: int, outcome: Outcome) -> Exception:
        """A trainer's error, as it would be raised if the trainer ran in this process."""
        error = outcome.error
        if isinstance(error, WaitTimeoutError):
            error = RunFailedError(f"no progress: {error}")
        elif isinstance(error, ClosedError) or not isinstance(error, Exception):
            error = RunFailedError(f"the run cannot continue: {error or type(error).__name__}")
        if not isinstance(error, ProaError):
            error.add_note(f"in trainer_{rank}:\n{outcome.traceback}")
        if self._locations[rank].log:
            error.add_note(
                f"what trainer_{rank} printed is in {self._locations[rank].log} on {self._locations[rank].node}"
            )
        return error

    def _trainer_death(self, rank: int, error: Exception) -> RunFailedError:
        if isinstance(error, ray.exceptions.RayTaskError):
            return RunFailedError(f"trainer_{rank}: {summarize(error)}")
        failure = TrainerDiedError(f"trainer_{rank} died: {summarize(error)}")
        if rank < len(self._locations) and self._locations[rank].log:
            failure.add_note(f"what it printed is in {self._locations[rank].log} on {self._locations[rank].node}")
        return failure

    def _raise_interrupt(self) -> None:
        if self._interruption.reason:
            raise KeyboardInterrupt(self._interruption.reason)


class _Replies:
    """The replies of all trainers to one call before the run begins. Their errors are raised here."""

    def __init__(self, calls: Sequence[LongCall[Any]]) -> None:
        self._unfinished = list(calls)
        self._follow_up: ReplicaError | None = None
        self._give_up_at = float("inf")

    @property
    def awaited(self) -> str:
        """The first trainer that has not replied."""
        return self._unfinished[0].who

    def are_complete(self) -> bool:
        for call in list(self._unfinished):
            try:
                if self._has_ended(call):
                    self._unfinished.remove(call)
            except ReplicaError as error:  # a consequence of another trainer's failure, whose own error follows
                self._unfinished.remove(call)
                if self._follow_up is None:
                    self._follow_up, self._give_up_at = error, monotonic() + END_SECONDS
        if self._follow_up is not None and (not self._unfinished or monotonic() > self._give_up_at):
            raise self._follow_up
        return not self._unfinished

    def _has_ended(self, call: LongCall[Any]) -> bool:
        try:
            return call.ended()
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, ProaError) else RunFailedError(summarize(error)) from error
        except ray.exceptions.RayError as error:
            raise TrainerDiedError(f"{call.who} died before it was ready: {summarize(error)}") from error
