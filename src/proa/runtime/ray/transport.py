"""Weights through Ray's object store: written once, read in place by every maker on a machine.

Tensors through Ray's own serializer cost several times what numpy views cost, so views it is. An array that arrives is
read-only memory of the store: it is checked and copied into the engine, and never written to.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_NUMPY = {torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}


@dataclass(frozen=True, slots=True)
class Parcel:
    """Tensors as arrays; what numpy has no dtype for travels as bytes."""

    arrays: dict[str, np.ndarray[Any, Any]]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]


def wrap(tensors: Mapping[str, torch.Tensor]) -> Parcel:
    """Views where tensors are contiguous on the CPU, copies elsewhere. Put it away before the tensors change."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().to("cpu").contiguous()
        arrays[name] = flat.numpy() if flat.dtype in _NUMPY else flat.reshape(-1).view(torch.uint8).numpy()
    return Parcel(
        arrays,
        {name: tuple(tensor.shape) for name, tensor in tensors.items()},
        {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()},
    )


def unwrap(parcel: Parcel) -> dict[str, torch.Tensor]:
    """The tensors, as views of the parcel's memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes
        tensors = {name: torch.from_numpy(array) for name, array in parcel.arrays.items()}
    return {
        name: tensor.view(getattr(torch, parcel.dtypes[name])).reshape(parcel.shapes[name])
        for name, tensor in tensors.items()
    }
