"""Packs deliveries for the trainer as flat arrays, which Ray sends for a fraction of the cost of tensors, and the state
of callbacks for the driver."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from ray import cloudpickle

from ...data.lease import Delivery
from ...data.packed_items import PackedItems, pack_items, unpack_items
from ...lifecycle.copies import PackedState
from ...lifecycle.hooks import BaseCallback


def wrap_delivery(delivery: Delivery) -> tuple[PackedItems, Delivery]:
    """The items as a few flat arrays, and the rest of the delivery."""
    return pack_items(delivery.items), replace(delivery, items=())


def unwrap_delivery(packed: PackedItems, rest: Delivery) -> Delivery:
    return replace(rest, items=unpack_items(packed))


def pack_states(callbacks: Sequence[BaseCallback]) -> tuple[PackedState, ...]:
    """The state of callbacks for the driver, with tensors on the CPU, as it may have no GPU."""
    return tuple(PackedState.of(callback, _dumps) for callback in callbacks)


class _ToCpu(cloudpickle.CloudPickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            there: Any = value.detach().cpu()
            return there.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(value)  # type: ignore[no-untyped-call]


def _dumps(value: Any) -> bytes:
    with io.BytesIO() as file:
        _ToCpu(file).dump(value)  # type: ignore[no-untyped-call]
        return file.getvalue()
