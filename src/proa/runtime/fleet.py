"""What is known of each maker, and what may come next: a table, and nothing else.

    restarting ──started──▶ stale ──loaded──▶ healthy ──quiet──▶ suspect
        ▲                     ▲                                    │
        └───replaced── dead ◀─┼──────── lost, from anywhere        │
                              └──────────────heard─────────────────┘

A maker that was silent may have missed weights. So there is one way to healthy, and it goes through fresh weights.
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
    """Not heard of for longer than it should take."""
    DEAD = "dead"


class Sign(StrEnum):
    """What was seen of a maker."""

    STARTED = "started"
    LOADED = "loaded"
    """It switched to the weights that its lease names."""
    HEARD = "heard"
    MADE = "made"
    """It has made a lease, so its place is one where work gets done."""
    QUIET = "quiet"
    LOST = "lost"
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
    (Health.DEAD, Sign.LOST): Health.DEAD,
}


def next_health(health: Health, sign: Sign) -> Health:
    """What a maker is after a sign of it. The dead give no signs: what comes late from one changes nothing.

    >>> next_health(Health.SUSPECT, Sign.HEARD)
    <Health.STALE: 'stale'>
    """
    if sign is Sign.LOST:
        return Health.DEAD
    return _NEXT.get((health, sign), health)


@dataclass(frozen=True, slots=True)
class Member:
    """One maker's place in the fleet."""

    name: str
    health: Health = Health.RESTARTING
    restarts: int = 0
    in_vain: int = 0
    """How many in a row were lost here before they had made anything."""
    reason: str = ""
    """Why it was last lost."""

    def after(self, sign: Sign, reason: str = "") -> Member:
        health = next_health(self.health, sign)
        restarts = self.restarts + (sign is Sign.REPLACED and self.health is Health.DEAD)
        in_vain = 0 if sign is Sign.MADE else self.in_vain + (sign is Sign.LOST and self.health is not Health.DEAD)
        return replace(self, health=health, restarts=restarts, in_vain=in_vain, reason=reason or self.reason)


def back_off(in_vain: int, *, first: float = 0.5, longest: float = 30.0) -> float:
    """Seconds to wait before a maker is started again: twice as long each time.

    >>> [back_off(n) for n in range(4)], back_off(50)
    ([0.5, 1.0, 2.0, 4.0], 30.0)
    """
    return min(longest, first * 2.0 ** min(in_vain, 30))


def enough(members: list[Member], minimum: int) -> bool:
    """Whether so many makers are alive, or on their way."""
    return sum(member.health is not Health.DEAD for member in members) >= minimum
