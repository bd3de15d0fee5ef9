"""The supervisor of a run's makers: it replaces lost makers, and decides when the run cannot continue.

What may happen to a maker, and the consequences, are the same for threads and actors. How makers are started, observed
and ended differs: that is a `Workplace` with its `Worker`s.

    check       makers that ended, had a lease for too long, or are silent are lost                      maker.lost
    start_due   a replacement in every slot whose maker is lost, under a new name, after a back-off      maker.recreated

A loss counts against the lease that the maker failed on, or had for too long. If the maker just died, it counts against
every lease that it had, and twice as many are allowed. It also counts against the slot, until a lease is made there.
Too many losses on one lease end the run, and so do too few slots (`Limits`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Protocol

from ..callbacks.performance import Performance
from ..errors import ProaError
from ..lifecycle.copies import PackedState
from ..lifecycle.manager import CallbackManager
from ..record.live import ActorView
from .fleet import Health, Member, Sign, back_off

log = logging.getLogger("proa.runtime")

START_SECONDS = 120.0
"""How long a maker may take to start."""
QUIET_SECONDS = 10.0
"""A maker that has not replied for this long is suspect."""


class RunFailedError(ProaError):
    """The run cannot continue; the message names the cause."""


@dataclass
class Limits:
    """When a maker is replaced, and when the run ends."""

    lease_timeout: float = 300.0
    """A lease that takes longer is handed to another maker, and its maker is replaced."""
    lease_attempts: int = 3
    """How many makers may fail on one lease before the run fails with their error."""
    min_makers: int = 1
    """With fewer slots left the run fails; if slots do not differ (`Workplace`), as soon as one is given up."""
    max_restarts: int = 10
    """How many makers in a row may be lost in one slot before they make anything; then the slot is given up and stays
    empty. If slots do not differ, the number is `lease_attempts`, and losses caused by a lease do not count."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the run cannot continue."""

    reason: str
    cause: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(describe(error), error.__cause__ or error)


@dataclass(frozen=True, slots=True)
class MakerEnd:
    """How a maker's work ended: for a reason, or with the run."""

    reason: str = ""
    lease_id: int | None = None
    """The lease that caused it, if any."""
    callback_errors: Mapping[str, int] = field(default_factory=dict)
    error: BaseException | None = None
    """The exception, if it was raised in this process."""
    copies: Sequence[PackedState] = ()
    """The state of its copies of callbacks, if it was another process."""
    performance: Performance | None = None
    """The measurements of a performance evaluator there."""
    is_independent: bool | None = None
    """Whether its engine decodes every sequence as if it were alone; None if it never had one."""


class Worker(Protocol):
    """A maker at work. Only `wait` blocks, and no method fails because the maker does."""

    @property
    def view(self) -> ActorView:
        """Its last report."""

    @property
    def log(self) -> str:
        """The file of its output, if it has one of its own."""

    @property
    def has_weights(self) -> bool:
        """Whether it has weights, and they are trusted."""

    @property
    def may_have_begun(self) -> bool:
        """Whether it may have begun to work."""

    def has_started(self) -> bool: ...

    def look(self) -> bool:
        """Whether it has reported anything since the last look."""

    def ended(self) -> MakerEnd | None:
        """How its work ended, once it has."""

    def distrust_weights(self) -> bool:
        """Have it load and check weights again before its next lease; returns whether it confirmed that."""

    def stop(self) -> None:
        """Tell it to end."""

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most `seconds`; returns whether it ended."""

    def kill(self) -> bool:
        """End it by force; returns whether that is possible."""

    def describe_log(self) -> str:
        """Where to read its output, as the end of a message."""


class Workplace(Protocol):
    """A place where makers run, and the leases they work on."""

    @property
    def slots_differ(self) -> bool:
        """Whether each slot has a machine or a GPU of its own, which may be at fault, or recover.

        If so, every loss counts against its slot, replacements wait, and the run continues without a slot that was
        given up. Otherwise a failure on a lease does not count against the slot, replacements start at once, and a slot
        given up ends the run.
        """

    def start(self, name: str, slot: int) -> Worker:
        """Start a maker of that name; each slot has one at a time."""

    def overdue(self, seconds: float) -> Mapping[int, str]:
        """Leases that have not moved on for `seconds`, each with its maker."""

    def dismiss(self, name: str) -> Iterable[int]:
        """Give a maker no more leases, and those that it had, which are returned, to others."""


@dataclass
class Slot:
    """A place for one maker, with its present or last maker."""

    member: Member
    worker: Worker
    heard_at: float
    end: MakerEnd | None = None
    """How this maker's work ended, once it has."""
    start_at: float = 0.0
    """When its replacement may start."""
    is_given_up: bool = False

    def note(self, sign: Sign, reason: str = "") -> None:
        self.member = self.member.after(sign, reason)

    @property
    def callback_errors(self) -> Mapping[str, int]:
        """The counts that it reported at its end, or last before it was killed."""
        return self.worker.view.callback_errors if self.end is None else self.end.callback_errors

    @property
    def view(self) -> ActorView:
        member = self.member
        return replace(
            self.worker.view,
            name=member.name,
            health=str(member.health),
            restarts=member.restarts,
            reason=member.reason,
            log=self.worker.log,
        )


class Supervisor:
    """Keeps a number of makers at work. Only `close` may be called from other threads."""

    def __init__(
        self,
        makers: int,
        workplace: Workplace,
        *,
        manager: CallbackManager,
        limits: Limits,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.failure: Failure | None = None
        """Why the run cannot continue; None while it can."""
        self._makers = makers
        self._workplace = workplace
        self._manager = manager
        self._limits = limits
        self._clock = clock
        self._slots: list[Slot] = []
        self._lease_failures: Counter[int] = Counter()
        self._lost_callback_errors: Counter[str] = Counter()
        self._is_closed = False

    def start(self) -> None:
        """Start the first maker of every slot."""
        for number in range(self._makers):
            member = Member(f"maker_{number}")
            self._slots.append(Slot(member, self._workplace.start(member.name, number), self._clock()))

    def check(self) -> bool:
        """Find lost makers, which `start_due` replaces; returns whether there are any."""
        working = self._working_slots()
        for slot in working:
            self._lose_ended(slot)
        self._lose_overdue()
        for slot in self._working_slots():
            self._listen(slot)
            self._lose_silent(slot)
        return any(slot.member.health is Health.DEAD for slot in working)

    def start_due(self) -> None:
        """Start the replacements that are due, unless the run is over."""
        for number, slot in enumerate(self._slots):
            is_due = slot.member.health is Health.DEAD and not slot.is_given_up and self._clock() >= slot.start_at
            if is_due and self.failure is None and not self._is_closed:
                member = slot.member.after(Sign.REPLACED)
                worker = self._workplace.start(member.name, number)
                self._lost_callback_errors.update(slot.callback_errors)
                slot.member, slot.worker, slot.end, slot.heard_at = member, worker, None, self._clock()
                self._manager.fire("maker.recreated", member.name, member.reason)

    def close(self) -> None:
        """The run is over: from now on no maker counts as lost, or is replaced. From any thread."""
        self._is_closed = True

    def collect_ends(self) -> None:
        """After the run, note how makers have ended."""
        self.close()
        for slot in self._working_slots():
            self._listen(slot)
            self._lose_ended(slot)

    @property
    def is_unfinished(self) -> bool:
        """Whether a maker that may have begun to work has not ended yet."""
        return any(slot.worker.may_have_begun for slot in self._working_slots())

    def end(self, seconds: float) -> None:
        """Stop all makers; those that do not end within `seconds` are killed, if possible."""
        for slot in self._slots:
            slot.worker.stop()
        until = self._clock() + seconds
        for slot in self._slots:
            if not slot.worker.wait(max(0.0, until - self._clock())) and not slot.worker.kill():
                log.warning("%s did not end with the run and is left behind", slot.member.name)

    def views(self) -> list[ActorView]:
        """The maker of every slot, or its last one and why it was lost."""
        return [slot.view for slot in self._slots]

    def activities(self) -> list[str]:
        """What every maker is doing, and for how long if that is known."""
        return [
            f"{view.name}: {view.doing}" + (f", for {time.time() - view.since:.0f} s" if view.since else "")
            for view in self.views()
        ]

    @property
    def callback_errors(self) -> Counter[str]:
        """How often callbacks in makers failed, including lost makers."""
        return sum((Counter(slot.callback_errors) for slot in self._slots), self._lost_callback_errors.copy())

    # -- observing -----------------------------------------------------------------------------------

    def _working_slots(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.end is None]

    def _listen(self, slot: Slot) -> None:
        """Note signs of life: that it started, reported, has weights, or has made a lease."""
        worker = slot.worker
        if worker.has_started() and slot.member.health is Health.RESTARTING:
            slot.note(Sign.STARTED)
            slot.heard_at = self._clock()
        if not worker.look():
            return
        slot.heard_at = self._clock()
        if slot.member.health is not Health.SUSPECT:
            slot.note(Sign.HEARD)
            if worker.has_weights:
                slot.note(Sign.LOADED)
        elif worker.distrust_weights():  # it may have missed weights while it was silent
            slot.note(Sign.HEARD)
        if worker.view.leases:
            slot.note(Sign.MADE)

    def _lose_ended(self, slot: Slot) -> None:
        slot.end = slot.worker.ended()
        if slot.end is not None and slot.end.reason:  # otherwise it ended with the run
            self._lose(slot, slot.end)

    def _lose_overdue(self) -> None:
        seconds = self._limits.lease_timeout
        for lease_id, name in self._workplace.overdue(seconds).items():
            for slot in self._working_slots():
                if slot.member.name == name:
                    reason = f"{name} has had lease {lease_id} for more than {seconds:g} s"
                    self._lose(slot, MakerEnd(reason, lease_id, slot.callback_errors), hangs=True)

    def _lose_silent(self, slot: Slot) -> None:
        name, silence = slot.member.name, self._clock() - slot.heard_at
        if silence > QUIET_SECONDS:
            slot.note(Sign.QUIET)
        if slot.member.health is Health.RESTARTING and silence > START_SECONDS:
            reason = f"{name} did not start within {START_SECONDS:g} s: are there resources for it?"
            self._lose(slot, MakerEnd(reason, callback_errors=slot.callback_errors))
        elif slot.member.health is Health.SUSPECT and silence > QUIET_SECONDS + self._limits.lease_timeout:
            reason = f"{name} has not replied for {silence:.0f} s"
            self._lose(slot, MakerEnd(reason, callback_errors=slot.callback_errors), hangs=True)

    # -- losing --------------------------------------------------------------------------------------

    def _lose(self, slot: Slot, end: MakerEnd, *, hangs: bool = False) -> None:
        slot.end = end
        is_slots_fault = end.lease_id is None or self._workplace.slots_differ
        slot.note(Sign.LOST if is_slots_fault else Sign.FAILED, end.reason)
        if self._is_closed or self.failure is not None:
            return
        name, worker = slot.member.name, slot.worker
        worker.stop()
        if hangs:
            worker.kill()
        held = list(self._workplace.dismiss(name))
        self._manager.fire("maker.lost", name, end.reason)
        self.failure = self._judge(slot, end, held)
        if self.failure is None:
            log.warning("%s is lost: %s%s", name, end.reason, worker.describe_log(), exc_info=end.error)
            delay = back_off(max(0, slot.member.idle_losses - 1)) if self._workplace.slots_differ else 0.0
            slot.start_at = self._clock() + delay

    def _judge(self, slot: Slot, end: MakerEnd, held: list[int]) -> Failure | None:
        """Count a loss; returns why the run cannot continue if it is one too many."""
        limits, reason = self._limits, ""
        most_losses, fewest_slots = limits.lease_attempts, self._makers
        if self._workplace.slots_differ:
            most_losses, fewest_slots = limits.max_restarts, limits.min_makers
        slot.is_given_up = slot.member.idle_losses >= most_losses
        if slot.is_given_up and sum(not one.is_given_up for one in self._slots) < fewest_slots:
            reason = end.reason
        for lease_id in held if end.lease_id is None else [end.lease_id]:
            self._lease_failures[lease_id] += 1
            count = self._lease_failures[lease_id]
            if end.lease_id is not None and count >= limits.lease_attempts:
                reason = end.reason
            elif count >= 2 * limits.lease_attempts:  # a death is weaker evidence against a lease than a failure on it
                reason = f"{end.reason}; lease {lease_id} was given to {count} makers"
        if not reason:
            return None
        error = end.error
        return Failure(reason + slot.worker.describe_log(), error and (error.__cause__ or error))


def describe(error: BaseException) -> str:
    """An error in one line, with the type of its cause."""
    cause = error.__cause__
    return f"{error}" if cause is None else f"{error} ({type(cause).__name__})"
