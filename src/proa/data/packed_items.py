"""Items packed for transport: a few flat arrays instead of hundreds of small tensors.

Pickling a tensor of 20 numbers takes longer than pickling the numbers, and a slice is pickled with its whole tensor. So
the values of a field are concatenated, and split again on arrival.

    field              items                           column
    action_log_probs   [-.1 -.2] [-.3] []       ─▶     rows 0 1 2   shapes (2,) (1,) (0,)   data -.1 -.2 -.3
    reward             1.0       None  0.5      ─▶     rows 0 2     shapes () ()            data 1.0 0.5
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from .experience import BufferItem

_FIELDS = tuple(field.name for field in fields(BufferItem))


@dataclass(frozen=True, slots=True)
class Column:
    """The tensors of one field and one dtype, concatenated, as bytes, since numpy lacks some of torch's dtypes."""

    field: str
    dtype: str
    rows: tuple[int, ...]
    """The items of these tensors; in others the field has another dtype, or is not a tensor."""
    shapes: tuple[tuple[int, ...], ...]
    data: np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class PackedItems:
    """Items in a form that pickles fast."""

    count: int
    columns: tuple[Column, ...]
    plain: dict[str, tuple[Any, ...]]
    """Values that are not tensors, by field: strings, facts, settings. Missing fields are None or tensors."""

    def __len__(self) -> int:
        return self.count


def pack_items(items: Sequence[BufferItem]) -> PackedItems:
    """Copy the items' tensors into arrays. Facts and settings are not copied."""
    columns: list[Column] = []
    plain: dict[str, tuple[Any, ...]] = {}
    for name in _FIELDS:
        values = [getattr(item, name) for item in items]
        alike: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for row, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                alike.setdefault((value.dtype, value.device), []).append(row)
        columns += [_column(name, rows, [values[row] for row in rows]) for rows in alike.values()]
        others = tuple(None if isinstance(value, torch.Tensor) else value for value in values)
        if any(value is not None for value in others):
            plain[name] = others
    return PackedItems(len(items), tuple(columns), plain)


def unpack_items(packed: PackedItems) -> tuple[BufferItem, ...]:
    """The items, on the CPU and in writable memory of their own."""
    rows: list[dict[str, Any]] = [dict.fromkeys(_FIELDS) for _ in range(packed.count)]
    for name, values in packed.plain.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    for column in packed.columns:
        for index, tensor in zip(column.rows, _tensors(column), strict=True):
            rows[index][column.field] = tensor
    return tuple(BufferItem(**row) for row in rows)


def _column(name: str, rows: Sequence[int], tensors: Sequence[torch.Tensor]) -> Column:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()
    return Column(
        name,
        str(flat.dtype).removeprefix("torch."),
        tuple(rows),
        tuple(tuple(tensor.shape) for tensor in tensors),
        flat.view(torch.uint8).numpy(),
    )


def _tensors(column: Column) -> list[torch.Tensor]:
    own = torch.empty(len(column.data), dtype=torch.uint8)
    own.numpy()[:] = column.data
    flat = own.view(getattr(torch, column.dtype))
    parts = torch.split(flat, [math.prod(shape) for shape in column.shapes])
    return [part.view(shape) for part, shape in zip(parts, column.shapes, strict=True)]
