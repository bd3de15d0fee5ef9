"""Leases that have not come yet: with nobody, or asked of a maker."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from ..data.lease import Delivery, GarbageError, Lease, check_delivery


@dataclass(frozen=True, slots=True)
class Assignment:
    """One lease, asked of one maker."""

    maker: str
    since: float
    lease: Lease
    """What was asked for; kept until it comes, so that it can be compared."""


class OpenLeases:
    """Who was asked for what. A lease that its maker gave up is with nobody, and asked for still: it may yet come."""

    def __init__(self) -> None:
        self.with_nobody: set[int] = set()
        self.asked: dict[int, Assignment] = {}

    @property
    def ids(self) -> set[int]:
        return self.with_nobody | self.asked.keys()

    def ask(self, lease: Lease, maker: str) -> None:
        self.with_nobody.discard(lease.id)
        self.asked[lease.id] = Assignment(maker, monotonic(), lease)

    def give_up(self, lease_id: int, maker: str) -> bool:
        """Whether it was that maker's to give up."""
        if lease_id not in self._held() or self.asked[lease_id].maker != maker:
            return False
        self.with_nobody.add(lease_id)
        return True

    def close(self, lease_id: int) -> None:
        """It came, or nobody waits for it any more."""
        self.with_nobody.discard(lease_id)
        self.asked.pop(lease_id, None)

    def check(self, delivery: Delivery) -> None:
        """Raise unless it is what was asked for."""
        if delivery.lease_id not in self.asked:
            raise GarbageError(f"lease {delivery.lease_id} was never handed out")
        check_delivery(self.asked[delivery.lease_id].lease, delivery)

    def held_by(self, maker: str) -> list[int]:
        return [lease_id for lease_id, assignment in self._held().items() if assignment.maker == maker]

    def overdue(self, seconds: float) -> dict[int, str]:
        """Leases that one maker has had for longer than that, and who."""
        now = monotonic()
        return {id_: assignment.maker for id_, assignment in self._held().items() if now - assignment.since > seconds}

    def whereabouts(self, lease_id: int) -> str:
        if lease_id in self.with_nobody:
            return ", which no maker has taken"
        assignment = self.asked.get(lease_id)
        return f", which {assignment.maker} has" if assignment else ""

    def _held(self) -> dict[int, Assignment]:
        return {id_: assignment for id_, assignment in self.asked.items() if id_ not in self.with_nobody}
