"""Weights through Ray's object store: written once, read in place by every maker on a machine.

Tensors through Ray's own serializer cost several times what numpy views cost, so views it is: of the bytes, since numpy
does not have all of torch's dtypes. An array that arrives is read-only memory of the store: it is checked and copied
into the engine, and never written to.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ...data.lease import Delivery
from ...data.packed_items import PackedItems, pack_items, unpack_items
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
