"""Makers as actors, in the driver: starts, observes and ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

import ray
from ray.actor import ActorHandle

from ...callbacks.performance import Performance
from ...lifecycle.copies import PackedState
from ...record.live import ActorView
from ..supervisor import QUIET_SECONDS, MakerEnd
from .calls import LongCall, Watched, request, summarize
from .link import Interests
from .maker_host import BuildMaker, MakerHost
from .output import ActorOutputs
from .places import Places
from .replies import Location, this_node
from .trainer_host import TrainerHost

COPY_SECONDS = 5.0
"""How often the state of a maker's copies of callbacks is fetched, in case it dies."""


class MakerActor:
    """A maker in an actor. Calls to it may be lost, and its death ends its work without an exception here."""

    def __init__(
        self,
        name: str,
        actor: ActorHandle[MakerHost],
        patience: float,
        outputs: ActorOutputs | None = None,
        *,
        has_copies: bool = False,
    ) -> None:
        self.name = name
        self._outputs = outputs
        self._actor = actor
        self._starting: LongCall[Location] = LongCall(name, patience, actor.ready)
        self._working: LongCall[MakerEnd] = LongCall(name, patience, actor.work)
        self._watched: Watched[ActorView] = Watched(name, patience, actor.look)
        self._copies: Watched[Sequence[PackedState]] | None = None
        if has_copies:
            self._copies = Watched(name, patience, actor.copies)
        self._copies_due_at = 0.0
        self._location: Location | None = None
        self._end: MakerEnd | None = None

    @property
    def copies(self) -> Sequence[PackedState]:
        """The state of its copies of callbacks: at its end, or else the last known."""
        if self._end is not None and self._end.copies:
            return self._end.copies
        return (self._copies and self._copies.latest) or ()

    @property
    def performance(self) -> Performance | None:
        """The measurements of an evaluator there, if it ended regularly."""
        return self._end.performance if self._end is not None else None

    @property
    def is_independent(self) -> bool | None:
        """Whether its engine decodes every sequence as if it were alone; None before its end."""
        return self._end.is_independent if self._end is not None else None

    @property
    def view(self) -> ActorView:
        view = self._watched.latest or ActorView(self.name, "maker", doing="starting")
        return view if self._end is None else replace(view, doing="ended")

    @property
    def log(self) -> str:
        return self._location.log if self._location is not None else ""

    @property
    def has_weights(self) -> bool:
        return self.view.version >= 0

    @property
    def may_have_begun(self) -> bool:
        """By its report; one that has started without a report yet may have begun."""
        return self.view.since > 0 if self._watched.latest is not None else self.has_started()

    def has_started(self) -> bool:
        with contextlib.suppress(Exception):  # a death is noticed by `ended`
            if self._location is None and self._starting.ended():
                self._location = self._starting.value
                if self._outputs is not None:
                    self._outputs.follow(self.name, self._location)
        return self._location is not None

    def look(self) -> bool:
        with contextlib.suppress(Exception):  # the same
            if self._copies is not None and monotonic() > self._copies_due_at and self._copies.look():
                self._copies_due_at = monotonic() + COPY_SECONDS
            return self._watched.look()
        return False

    def ended(self) -> MakerEnd | None:
        if self._end is None:
            try:
                if self._working.ended():
                    self._end = self._working.value
            except Exception as error:  # it died; not all deaths are actor errors to Ray, such as lack of memory
                self._end = MakerEnd(f"{self.name}: {summarize(error)}", callback_errors=self.view.callback_errors)
        return self._end

    def distrust_weights(self) -> bool:
        with contextlib.suppress(Exception):
            request(self._actor.distrust_weights, who=self.name, seconds=QUIET_SECONDS)
            return True
        return False

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            ray.kill(self._actor)
        if self._outputs is not None:
            self._outputs.end(self.name)

    def wait(self, seconds: float) -> bool:
        until = monotonic() + seconds
        while self._is_running() and monotonic() < until:
            time.sleep(0.02)
        return not self._is_running()

    def kill(self) -> bool:
        """Kill the process, as one that is stopped or hangs in native code ignores Ray."""
        if self._location is not None and self._is_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._location.pid, signal.SIGKILL)
        return True

    def describe_log(self) -> str:
        if self._location is None or not self._location.log:
            return ""
        return f" (what it printed is in {self._location.log} on {self._location.node})"

    def _is_running(self) -> bool:
        """Whether its process exists, as far as this machine can tell."""
        if self._location is None or self._location.node != this_node():
            return False
        try:
            os.kill(self._location.pid, 0)
        except ProcessLookupError:
            return False
        return True


class MakerActors:
    """Makers as actors of a cluster; the trainer's actor has the lease book."""

    slots_differ = True

    def __init__(
        self,
        build: BuildMaker,
        trainer: ActorHandle[TrainerHost],
        *,
        places: Places,
        interests: Interests,
        patience: float,
        outputs: ActorOutputs,
        has_copies: bool = False,
    ) -> None:
        remote: Any = ray.remote  # its types do not know concurrency groups
        self._host = remote(concurrency_groups=MakerHost.GROUPS)(MakerHost)
        self._build = build
        self._trainer = trainer
        self._places = places
        self._interests = interests
        self._patience = patience
        self._outputs = outputs
        self._has_copies = has_copies
        self.started: list[MakerActor] = []
        """All makers, including replaced ones."""

    def start(self, name: str, slot: int) -> MakerActor:
        actor = self._host.options(**self._places.maker_options(name, slot)).remote(
            self._build, name, self._trainer, self._interests, self._patience, self._outputs.is_shown
        )
        maker = MakerActor(name, actor, self._patience, self._outputs, has_copies=self._has_copies)
        self.started.append(maker)
        return maker

    def overdue(self, seconds: float) -> Mapping[int, str]:
        late: Mapping[int, str] = request(self._trainer.overdue, seconds, who="the trainer", seconds=self._patience)
        return late

    def dismiss(self, name: str) -> list[int]:
        held: list[int] = request(self._trainer.dismiss, name, who="the trainer", seconds=self._patience)
        return held
