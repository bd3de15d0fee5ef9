"""The states of a maker and the transitions between them, as a table.

    restarting ──started──▶ stale ──loaded──▶ healthy ──quiet──▶ suspect
        ▲                     ▲                                    │
        └───replaced── dead ◀─┼──── lost or failed, from anywhere  │
                              └──────────────heard─────────────────┘

A maker that was silent may have missed weights, so the only way to healthy is to load weights again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Health(StrEnum):
    RESTARTING = "restarting"
    STALE = "stale"
    """Alive, with weights of unknown age."""
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """Silent for longer than a reply should take."""
    DEAD = "dead"


class Sign(StrEnum):
    """An observation of a maker."""

    STARTED = "started"
    LOADED = "loaded"
    """It switched to the weights that its lease names."""
    HEARD = "heard"
    MADE = "made"
    """It has made a lease, so its slot works."""
    QUIET = "quiet"
    LOST = "lost"
    FAILED = "failed"
    """It failed on a lease, which counts against the lease and not against the slot."""
    REPLACED = "replaced"


_NEXT: dict[tuple[Health, Sign], Health] = {
    (Health.RESTARTING, Sign.STARTED): Health.STALE,
    (Health.RESTARTING, Sign.QUIET): Health.RESTARTING,  # the start has a deadline of its own
    (Health.RESTARTING, Sign.HEARD): Health.STALE,
    (Health.STALE, Sign.LOADED): Health.HEALTHY,
    (Health.STALE, Sign.HEARD): Health.STALE,
    (Health.STALE, Sign.QUIET): Health.SUSPECT,
    (Health.HEALTHY, Sign.LOADED): Health.HEALTHY,
    (Health.HEALTHY, Sign.HEARD): Health.HEALTHY,
    (Health.HEALTHY, Sign.QUIET): Health.SUSPECT,
    (Health.SUSPECT, Sign.HEARD): Health.STALE,
    (Health.SUSPECT, Sign.LOADED): Health.HEALTHY,
    (Health.SUSPECT, Sign.QUIET): Health.SUSPECT,
    (Health.DEAD, Sign.REPLACED): Health.RESTARTING,
}


def next_health(health: Health, sign: Sign) -> Health:
    """The health of a maker after a sign. Late signs of a dead maker change nothing.

    >>> next_health(Health.SUSPECT, Sign.HEARD)
    <Health.STALE: 'stale'>
    """
    if sign in (Sign.LOST, Sign.FAILED):
        return Health.DEAD
    return _NEXT.get((health, sign), health)


@dataclass(frozen=True, slots=True)
class Member:
    """The maker in one slot of the fleet, with the history of the slot.

    >>> Member("maker_0").after(Sign.LOST, "out of memory").after(Sign.REPLACED).name
    'maker_0+1'
    """

    slot: str
    health: Health = Health.RESTARTING
    restarts: int = 0
    idle_losses: int = 0
    """How many makers in a row were lost here before they had made anything."""
    reason: str = ""
    """Why the last one was lost."""

    @property
    def name(self) -> str:
        """A new name for each replacement, so that a late delivery is not attributed to it."""
        return f"{self.slot}+{self.restarts}" if self.restarts else self.slot

    def after(self, sign: Sign, reason: str = "") -> Member:
        health = next_health(self.health, sign)
        restarts = self.restarts + (sign is Sign.REPLACED and self.health is Health.DEAD)
        idle_losses = (
            0 if sign is Sign.MADE else self.idle_losses + (sign is Sign.LOST and self.health is not Health.DEAD)
        )
        return replace(self, health=health, restarts=restarts, idle_losses=idle_losses, reason=reason or self.reason)


def back_off(idle_losses: int, *, first: float = 0.5, longest: float = 30.0) -> float:
    """Seconds to wait before a maker is started again: twice as long each time.

    >>> [back_off(n) for n in range(4)], back_off(50)
    ([0.5, 1.0, 2.0, 4.0], 30.0)
    """
    return min(longest, first * 2.0 ** min(idle_losses, 30))
