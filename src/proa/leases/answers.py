"""Compares the answers of environments that are not deterministic, where a lease was made twice."""

from __future__ import annotations

import hashlib
import json
import logging

from ..data.lease import Delivery

log = logging.getLogger("proa.leases")

KEPT = 256
"""How many leases are remembered."""


class Answers:
    """Digests of answers by lease; warns if a repeated delivery, which is ignored, has other answers."""

    def __init__(self) -> None:
        self._digests: dict[int, tuple[str, str]] = {}

    def note(self, delivery: Delivery, maker: str) -> None:
        if digest := _digest(delivery):
            self._digests[delivery.lease_id] = digest, maker
            if len(self._digests) > KEPT:
                del self._digests[next(iter(self._digests))]

    def compare(self, delivery: Delivery, maker: str) -> None:
        first, by = self._digests.get(delivery.lease_id, ("", ""))
        if first and _digest(delivery) != first:
            log.warning(
                "lease %d was made twice, by %s and by %s, and its environment answered otherwise the second time: the "
                "first is what is trained, and what journal.jsonl has",
                delivery.lease_id, by, maker,
            )  # fmt: skip


def _digest(delivery: Delivery) -> str:
    """Empty if all environments are deterministic."""
    trajectories = [item.facts.trajectory for item in delivery.items]
    answers = [one.answers for one in trajectories if one is not None and one.answers]
    if not answers:
        return ""
    return hashlib.blake2b(json.dumps(answers, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
