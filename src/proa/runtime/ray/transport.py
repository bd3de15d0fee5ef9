"""A delivery on its way to the trainer: a few flat arrays, which Ray carries for a fraction of what tensors cost."""

from __future__ import annotations

from dataclasses import replace

from ...data.lease import Delivery
from ...data.packed_items import PackedItems, pack_items, unpack_items


def wrap_delivery(delivery: Delivery) -> tuple[PackedItems, Delivery]:
    """Its items as a few flat arrays, and the rest of it."""
    return pack_items(delivery.items), replace(delivery, items=())


def unwrap_delivery(packed: PackedItems, rest: Delivery) -> Delivery:
    return replace(rest, items=unpack_items(packed))
