"""How long the callbacks of each moment take, and which of them is slow.

A moment is timed with one pair of clock reads. Only its first firings, and some after an overrun, are timed callback by
callback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from .listeners import Listener
from .moments import EVENT_NAMES, Moment

log = logging.getLogger("proa.lifecycle")

OVERRUN_SHARE = 0.05
"""Callbacks that take more than this share of the time between two firings of their moment overrun."""
OVERRUN_SECONDS = 1e-4
"""…unless they take less than this: in a loop of microseconds everything is a large share."""
FIRST_CALLS = 3
CALLS_AFTER_OVERRUN = 16
QUIET_CALLS = 1000
"""How many firings after an overrun a moment is not examined again."""


@dataclass(slots=True)
class Clock:
    """How often a moment fired and how long its callbacks took; compiled dispatchers write to it."""

    calls: int = 0
    seconds: float = 0.0
    begun: float = 0.0
    quiet_until: int = 0


@dataclass(slots=True)
class Profile:
    """A few firings of one moment, timed callback by callback."""

    listeners: Sequence[Listener]
    calls: int
    begun: float
    done: int = 0
    seconds: float = 0.0


class Profiler:
    """The clocks of all moments, and the profiles that are being taken."""

    def __init__(self, recompile: Callable[[Moment], object]) -> None:
        self.clocks = {name: Clock(begun=perf_counter()) for name in map(str, EVENT_NAMES)}
        self._profiles: dict[str, Profile] = {}
        self._recompile = recompile

    def start(self, moment: Moment, listeners: Sequence[Listener], calls: int) -> None:
        """Time the next firings callback by callback; the caller compiles the moment for it."""
        for listener in listeners:
            listener.profiled_seconds = 0.0
        self._profiles[moment.name] = Profile(listeners, calls, perf_counter())

    def is_profiling(self, moment: Moment) -> bool:
        return moment.name in self._profiles

    def overran(self, moment: Moment, listeners: Sequence[Listener]) -> None:
        """A firing took too long. It may have been an outlier: profile before warning."""
        clock = self.clocks[moment.name]
        if clock.calls >= clock.quiet_until:
            clock.quiet_until = clock.calls + QUIET_CALLS
            self.start(moment, listeners, CALLS_AFTER_OVERRUN)
            self._recompile(moment)

    def profiled(self, moment: Moment, took: float) -> None:
        """One firing was timed callback by callback; after the last, warn if callbacks are slow."""
        profile = self._profiles.get(moment.name)
        if profile is None:
            return
        profile.done += 1
        profile.seconds += took
        if profile.done < profile.calls:
            return
        del self._profiles[moment.name]
        share = profile.seconds / (perf_counter() - profile.begun)
        mean = profile.seconds / profile.done
        if profile.calls == CALLS_AFTER_OVERRUN and share > OVERRUN_SHARE and mean > OVERRUN_SECONDS:
            slowest = max(profile.listeners, key=lambda listener: listener.profiled_seconds)
            log.warning(
                "callbacks at %r take %.0f %% of the time: %.1f ms at each, of which %s takes %.1f ms",
                moment.name, 100 * share, 1e3 * mean, slowest.name, 1e3 * slowest.profiled_seconds / profile.done,
            )  # fmt: skip
        self._recompile(moment)
