"""Tensors on their way to another process: as numpy views of their bytes, which the receiver reads in place.

Pickling tensors costs several times as much. The views are of bytes because numpy does not have all of torch's dtypes.
An array that arrives may be read-only memory, as in Ray's object store: it is checked and copied into the engine, and
never written to.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Parcel:
    """Tensors by name, as their bytes, and what the bytes mean."""

    arrays: dict[str, Bytes]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]


def wrap(tensors: Mapping[str, torch.Tensor]) -> Parcel:
    """Views of tensors that are contiguous on the CPU, copies of others. Send it before the tensors change."""
    return Parcel(
        {name: tensor_bytes(tensor.to("cpu").contiguous()) for name, tensor in tensors.items()},
        {name: tuple(tensor.shape) for name, tensor in tensors.items()},
        {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()},
    )


def unwrap(parcel: Parcel) -> dict[str, torch.Tensor]:
    """The tensors, as views of the parcel's memory."""
    tensors: dict[str, torch.Tensor] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is only read
        for name, array in parcel.arrays.items():
            dtype, shape = getattr(torch, parcel.dtypes[name]), parcel.shapes[name]
            if array.size:
                tensors[name] = torch.from_numpy(array).view(dtype).reshape(shape)
            else:  # an empty array has no strides that could be read as another dtype
                tensors[name] = torch.empty(shape, dtype=dtype)
    return tensors


def tensor_bytes(tensor: torch.Tensor) -> Bytes:
    """The memory of a contiguous tensor on the CPU, as it is."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
