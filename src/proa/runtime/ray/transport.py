"""Weights through Ray's object store: written once, read in place by every maker on a machine; and the state of
callbacks, back to the driver.

Tensors through Ray's own serializer cost several times what numpy views cost, so views it is: of the bytes, since numpy
does not have all of torch's dtypes. An array that arrives is read-only memory of the store: it is checked and copied
into the engine, and never written to.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from ray import cloudpickle

from ...data.lease import Delivery
from ...data.packed_items import PackedItems, pack_items, unpack_items
from ...lifecycle.copies import PackedState
from ...lifecycle.hooks import BaseCallback
from ...roles.weights import Bytes, tensor_bytes


def wrap_delivery(delivery: Delivery) -> tuple[PackedItems, Delivery]:
    """Its items as a few flat arrays, and the rest of it."""
    return pack_items(delivery.items), replace(delivery, items=())


def unwrap_delivery(packed: PackedItems, rest: Delivery) -> Delivery:
    return replace(rest, items=unpack_items(packed))


@dataclass(frozen=True, slots=True)
class Parcel:
    """Tensors by name, as their bytes, and what the bytes mean."""

    arrays: dict[str, Bytes]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]


def wrap(tensors: Mapping[str, torch.Tensor]) -> Parcel:
    """Views where tensors are contiguous on the CPU, copies elsewhere. Put it away before the tensors change."""
    return Parcel(
        {name: tensor_bytes(tensor.to("cpu").contiguous()) for name, tensor in tensors.items()},
        {name: tuple(tensor.shape) for name, tensor in tensors.items()},
        {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()},
    )


def unwrap(parcel: Parcel) -> dict[str, torch.Tensor]:
    """The tensors, as views of the parcel's memory."""
    tensors: dict[str, torch.Tensor] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes
        for name, array in parcel.arrays.items():
            dtype, shape = getattr(torch, parcel.dtypes[name]), parcel.shapes[name]
            if array.size:
                tensors[name] = torch.from_numpy(array).view(dtype).reshape(shape)
            else:  # an empty array has no strides that could be read as another dtype
                tensors[name] = torch.empty(shape, dtype=dtype)
    return tensors


def pack_states(callbacks: Sequence[BaseCallback]) -> tuple[PackedState, ...]:
    """The state of callbacks, for the driver, which may have no GPU: tensors arrive on the CPU."""
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
