"""Leases that have not been delivered: unassigned, or handed out to a maker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from time import monotonic

from ..data.lease import Delivery, GarbageError, Lease, check_delivery


@dataclass(frozen=True, slots=True)
class Assignment:
    """One lease in the hands of one maker."""

    maker: str
    moved_at: float
    """When it was handed out, or last moved on."""
    lease: Lease
    """The lease, against which its delivery is checked."""


class OpenLeases:
    """Which maker has which lease. One that was given up is both unassigned and handed out, as it may still come."""

    def __init__(self) -> None:
        self.unassigned: set[int] = set()
        self.handed_out: dict[int, Assignment] = {}
        self._made: set[int] = set()  # finished by its maker, which waits to deliver it

    @property
    def ids(self) -> set[int]:
        return self.unassigned | self.handed_out.keys()

    @property
    def holders(self) -> set[str]:
        """The makers that have leases."""
        return {assignment.maker for assignment in self._held().values()}

    def hand_out(self, lease: Lease, maker: str) -> None:
        self.unassigned.discard(lease.id)
        self._made.discard(lease.id)
        self.handed_out[lease.id] = Assignment(maker, monotonic(), lease)

    def note_made(self, lease_ids: Iterable[int], maker: str) -> bool:
        """These leases wait to be delivered by the maker that has them; False if it has none of them any more."""
        held = set(lease_ids) & set(self.held_by(maker))
        self._made |= held
        return bool(held)

    def note_progress(self, lease_ids: Iterable[int], maker: str) -> None:
        """These leases of that maker have moved on, and are not overdue."""
        for lease_id in set(lease_ids) & set(self.held_by(maker)):
            self.handed_out[lease_id] = replace(self.handed_out[lease_id], moved_at=monotonic())

    def note_handing_in(self, lease_id: int, maker: str) -> None:
        """That maker is about to deliver it; from now on it can be overdue."""
        if lease_id in self.held_by(maker):
            self._made.discard(lease_id)
            self.note_progress([lease_id], maker)

    def being_made_by(self, maker: str) -> int:
        """How many leases a maker has and has not made yet."""
        return len(set(self.held_by(maker)) - self._made)

    def is_made_by(self, lease_id: int, maker: str) -> bool:
        """Whether that maker has made it and not delivered it."""
        return lease_id in self._made and self.handed_out[lease_id].maker == maker

    def give_up(self, lease_id: int, maker: str) -> bool:
        """Unassign a lease; False if that maker does not have it."""
        if lease_id not in self._held() or self.handed_out[lease_id].maker != maker:
            return False
        self.unassigned.add(lease_id)
        self._made.discard(lease_id)
        return True

    def close(self, lease_id: int) -> None:
        """Forget a lease that was delivered, or is no longer expected."""
        self.unassigned.discard(lease_id)
        self._made.discard(lease_id)
        self.handed_out.pop(lease_id, None)

    def check(self, delivery: Delivery) -> None:
        """Raise unless the delivery matches its lease."""
        self._made.discard(delivery.lease_id)  # a delivery of garbage does not count
        if delivery.lease_id not in self.handed_out:
            raise GarbageError(f"lease {delivery.lease_id} was never handed out")
        check_delivery(self.handed_out[delivery.lease_id].lease, delivery)

    def held_by(self, maker: str) -> list[int]:
        return [lease_id for lease_id, assignment in self._held().items() if assignment.maker == maker]

    def overdue(self, seconds: float) -> dict[int, str]:
        """Leases that have not moved on for `seconds`, each with its maker. Finished ones are not overdue."""
        now = monotonic()
        return {
            lease_id: assignment.maker
            for lease_id, assignment in self._held().items()
            if now - assignment.moved_at > seconds and lease_id not in self._made
        }

    def whereabouts(self, lease_id: int) -> str:
        if lease_id in self.unassigned:
            return ", which no maker has taken"
        assignment = self.handed_out.get(lease_id)
        return f", which {assignment.maker} has" if assignment else ""

    def _held(self) -> dict[int, Assignment]:
        return {id_: assignment for id_, assignment in self.handed_out.items() if id_ not in self.unassigned}
