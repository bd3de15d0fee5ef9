"""A weight in oneDNN's fastest layout, with which large products on a CPU take 10 to 50 % less time.

torch has these products for its compiler, under `torch.ops.mkldnn`. A call costs some 15 microseconds more than a plain
product, so small weights are not packed; and packing makes a second copy, so those of large models are not either.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

SMALLEST = 2**17
"""The fewest elements of a weight that is packed."""
LARGEST_MODEL = 2**28
"""The most elements of a model whose weights are packed: 1 GiB more memory in float32."""


class PackedWeight:
    """Computes `inputs @ weight + bias` from a copy of the weight, made at its first use after `forget`.

    Code that writes to the weight must call `forget`, as the tensor's version counter misses writes through other views
    of the same memory.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight
        self._packed: torch.Tensor | None = None

    @staticmethod
    def of(weight: torch.Tensor) -> PackedWeight | None:
        """A packed weight; None if the plain product is as good."""
        fits = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= SMALLEST
        return PackedWeight(weight) if fits and is_available() else None

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedWeight:
        return PackedWeight(copy.deepcopy(self._weight, memo))

    def forget(self) -> None:
        """Note that the weight has changed."""
        self._packed = None

    def product(self, inputs: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._packed is None:
            self._packed = _ops()._reorder_linear_weight(self._weight.t().contiguous())
        product: torch.Tensor = _ops()._linear_pointwise(inputs, self._packed, bias, "none", [], "")
        return product


def is_available() -> bool:
    """Whether this torch has these products and they are enabled."""
    backend: Any = torch.backends.mkldnn
    has_both = hasattr(_ops(), "_reorder_linear_weight") and hasattr(_ops(), "_linear_pointwise")
    return bool(has_both and backend.is_available() and backend.enabled)


def _ops() -> Any:
    return torch.ops.mkldnn
