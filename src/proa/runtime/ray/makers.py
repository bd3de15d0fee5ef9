"""The makers of a run, as its driver keeps them: started, looked at, replaced when they are lost."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import ray

from ...lifecycle.manager import CallbackManager
from ...record.live import ActorView
from ..fleet import Health, Member, Sign, back_off, enough
from ..local import Supervision
from .calls import LongCall, Watched, asked, in_short
from .maker_host import MakerEnd
from .replies import Whereabouts, this_node

log = logging.getLogger("proa.runtime")

START_SECONDS = 120.0
"""How long an actor may take to come up."""
GOING_SECONDS = 2.0
"""How long a process may take to go when Ray tells it to."""
QUIET_SECONDS = 10.0
"""A maker that has not replied for so long is suspect."""


@dataclass
class _Post:
    """A maker's place: who works there now, and since when nobody does."""

    member: Member
    actor: Any = None
    working: LongCall | None = None
    starting: LongCall | None = None
    where: Whereabouts | None = None
    watched: Watched | None = None
    start_at: float = 0.0
    end: MakerEnd | None = None

    def sign(self, sign: Sign) -> None:
        self.member = self.member.after(sign)

    @property
    def callback_errors(self) -> Mapping[str, int]:
        """What it said of its callbacks at its end; of one that was killed, what it had said before."""
        return self.end.callback_errors if self.end is not None else self.view.callback_errors

    @property
    def may_have_begun(self) -> bool:
        """As it said itself; one that nobody has heard of since it came up, in a short run, may have."""
        if self.watched is not None and self.watched.said is not None:
            return self.view.since > 0
        with contextlib.suppress(Exception):
            return self.where is not None or (self.starting is not None and self.starting.ended())
        return False

    @property
    def view(self) -> ActorView:
        """What it last said of itself."""
        said: ActorView | None = self.watched.said if self.watched is not None else None
        return said or ActorView(self.member.name, "maker", doing="starting" if self.actor is not None else "")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a maker is given up, and when the run is."""

    supervision: Supervision
    min_makers: int = 1
    max_restarts: int = 10
    """So many in a row may be lost at one maker's place, before they made anything, until it is given up."""


class MakerFleet:
    """Keeps so many makers at work. `start` starts one by name; `trainer` is the actor that has the lease book."""

    def __init__(
        self,
        count: int,
        start: Callable[[str], Any],
        trainer: Any,
        *,
        manager: CallbackManager,
        limits: Limits,
        patience: float,
    ) -> None:
        self._start_actor = start
        self._trainer = trainer
        self._manager = manager
        self._limits = limits
        self._patience = patience
        self._posts = {f"maker_{number}": _Post(Member(f"maker_{number}")) for number in range(count)}
        self._failures: dict[int, int] = {}
        self._given_up: list[_Post] = []
        self._errors_of_the_gone: Counter[str] = Counter()
        self.fatal = ""
        """Why the run cannot go on, once it cannot."""

    def start(self) -> None:
        for name in self._posts:
            self._start(name)

    def look_after(self, overdue: Mapping[int, str]) -> None:
        """See who is gone, who hangs (`overdue`: leases that a maker has had for too long) and who is quiet."""
        for name in list(self._posts):
            self._see_whether_it_works(name)
        for lease_id, name in overdue.items():
            if name in self._posts and self._posts[name].actor is not None:
                seconds = self._limits.supervision.lease_timeout
                self._lose(name, f"{name} has had lease {lease_id} for more than {seconds:g} s", lease_id, hangs=True)
        for name in list(self._posts):
            self._see_how_it_is(name)
        for name, post in self._posts.items():
            if post.actor is None and monotonic() >= post.start_at and not self.fatal:
                self._start(name)
                self._manager.fire("maker.recreated", name, post.member.reason)

    @property
    def callback_errors(self) -> Counter[str]:
        """How often callbacks in makers failed, of all that there were."""
        here = (Counter(post.callback_errors) for post in self._posts.values())
        return sum(here, self._errors_of_the_gone.copy())

    @property
    def at_work(self) -> bool:
        """Whether any maker that had begun has still to end; one that was still getting ready has nothing to say."""
        return any(post.working is not None and post.may_have_begun for post in self._posts.values())

    def see_off(self) -> None:
        """Note who has ended with the run."""
        for post in self._posts.values():
            with contextlib.suppress(Exception):
                if post.watched is not None:
                    post.watched.look()
                if post.working is not None and post.working.ended():
                    post.end, post.working = post.working.value, None

    def end(self) -> None:
        """Nobody is left after this."""
        for post in self._posts.values():
            _kill(post)
        until = monotonic() + GOING_SECONDS
        for post in self._posts.values():
            while _is_alive(post) and monotonic() < until:
                time.sleep(0.02)
            _kill_the_process(post)

    def views(self) -> list[ActorView]:
        """Every place, with who is there or why nobody is."""
        return [_view(post) for post in (*self._posts.values(), *self._given_up)]

    # -- one maker -----------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        post = self._posts[name]
        post.actor = actor = self._start_actor(name)
        post.starting = LongCall(name, self._patience, actor.ready)
        post.working = LongCall(name, self._patience, actor.work)
        post.watched = Watched(name, self._patience, actor.look)

    def _see_whether_it_works(self, name: str) -> None:
        post = self._posts[name]
        if post.working is None:
            return
        try:
            if not post.working.ended():
                return
        except Exception as error:  # it died; of memory, say, which is no actor's error to Ray
            self._lose(name, f"{name}: {in_short(error)}", None)
            return
        end: MakerEnd = post.working.value
        post.end, post.working = end, None
        if end.reason:
            self._lose(name, end.reason, end.lease_id)

    def _see_how_it_is(self, name: str) -> None:
        """Take signs of life: its first, that it was heard, that it has weights, or that it is quiet."""
        post = self._posts[name]
        if post.working is None or post.starting is None or post.watched is None:
            return
        with contextlib.suppress(Exception):  # a maker that died is noticed by its work
            if post.where is None and post.starting.ended():
                post.where, post.watched.heard_at = post.starting.value, monotonic()
                post.sign(Sign.STARTED)
            if post.watched.look():
                self._hear_of(post)
        silent = monotonic() - post.watched.heard_at
        if silent > QUIET_SECONDS:
            post.sign(Sign.QUIET)
        if post.member.health is Health.RESTARTING and silent > START_SECONDS:
            self._lose(name, f"{name} did not come up within {START_SECONDS:g} s: are there resources for it?", None)
        elif post.member.health is Health.SUSPECT and silent > QUIET_SECONDS + self._limits.supervision.lease_timeout:
            self._lose(name, f"{name} has not been heard of for {silent:.0f} s", None, hangs=True)

    def _hear_of(self, post: _Post) -> None:
        was_suspect = post.member.health is Health.SUSPECT
        post.sign(Sign.HEARD)
        if was_suspect:  # what it has may be anything: it is to load and check again
            asked(post.actor.distrust_weights, who=post.member.name, seconds=QUIET_SECONDS)
        elif post.view.version >= 0:
            post.sign(Sign.LOADED)
        if post.view.leases:
            post.sign(Sign.MADE)

    def _lose(self, name: str, reason: str, lease_id: int | None, *, hangs: bool = False) -> None:
        post = self._posts.pop(name)
        self._errors_of_the_gone.update(post.callback_errors)
        _kill(post)
        if hangs:
            _kill_the_process(post)
        held = asked(self._trainer.dismiss, name, who="the trainer", seconds=self._patience)
        self._manager.fire("maker.lost", name, reason)
        log.warning("%s is lost: %s%s", name, reason, _see_log(post))
        lost = post.member.after(Sign.LOST, reason)
        if lost.in_vain >= self._limits.max_restarts:
            self._given_up.append(replace(post, member=lost, actor=None, working=None))
            if not self._are_enough:
                self.fatal = reason + _see_log(post)
        else:
            self._replace(lost)
        self._blame(held, reason, lease_id, post)

    def _replace(self, lost: Member) -> None:
        again = lost.after(Sign.REPLACED)
        again = replace(again, name=f"{lost.name.partition('+')[0]}+{again.restarts}")
        self._posts[again.name] = _Post(again, start_at=monotonic() + back_off(max(0, again.in_vain - 1)))

    def _blame(self, held: Sequence[int], reason: str, failed: int | None, post: _Post) -> None:
        """Count failures by lease: one that no maker gets done is the run's end, whatever else gets done."""
        for lease_id in held if failed is None else [failed]:
            count = self._failures[lease_id] = self._failures.get(lease_id, 0) + 1
            # That a maker died is less its lease's doing than that it failed on it.
            most = self._limits.supervision.lease_attempts * (1 if failed is not None else 2)
            if count >= most:
                again = f"; lease {lease_id} was given to {count} makers" if failed is None else ""
                self.fatal = f"{reason}{again}{_see_log(post)}"

    @property
    def _are_enough(self) -> bool:
        return enough([post.member for post in self._posts.values()], self._limits.min_makers)


def _kill(post: _Post) -> None:
    if post.actor is not None:
        with contextlib.suppress(Exception):
            ray.kill(post.actor)


def _kill_the_process(post: _Post) -> None:
    """Ray asks a process to end; one that is stopped, or hangs in foreign code, does not hear it."""
    if _is_alive(post):
        assert post.where is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(post.where.pid, signal.SIGKILL)


def _is_alive(post: _Post) -> bool:
    """Whether its process is there, as far as can be told from this machine."""
    if post.where is None or post.where.node != this_node():
        return False
    try:
        os.kill(post.where.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _see_log(post: _Post) -> str:
    if post.where is None or not post.where.log:
        return ""
    return f" (what it printed is in {post.where.log} on {post.where.node})"


def _view(post: _Post) -> ActorView:
    member = post.member
    return replace(
        post.view,
        name=member.name,
        health=str(member.health),
        restarts=member.restarts,
        reason=member.reason,
        log=post.where.log if post.where is not None else "",
    )
