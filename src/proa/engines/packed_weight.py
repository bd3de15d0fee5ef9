"""A weight laid out as oneDNN reads it fastest: large products on a CPU take 10 to 50 % less time so.

torch has these products for its compiler, under `torch.ops.mkldnn`. A call costs some 15 microseconds more than a plain
product, so small weights stay as they are; and it is a second copy, so those of large models do too.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

SMALLEST = 2**17
"""Numbers in a weight that is worth it."""
LARGEST_MODEL = 2**28
"""Numbers in a model whose weights may lie in memory twice: 1 GiB more in float32."""


class PackedWeight:
    """Computes `inputs @ weight + bias` from a copy of the weight, made again whenever the weight was written to."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight
        self._packed: torch.Tensor | None = None
        self._packed_version = -1

    @staticmethod
    def of(weight: torch.Tensor) -> PackedWeight | None:
        """None where the plain product is as good."""
        fits = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= SMALLEST
        return PackedWeight(weight) if fits and is_available() and not weight.is_inference() else None

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedWeight:
        """Of the copied weight, and packed anew: it counts its changes from the start."""
        return PackedWeight(copy.deepcopy(self._weight, memo))

    def product(self, inputs: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._packed_version != self._weight._version:
            self._packed = _ops()._reorder_linear_weight(self._weight.t().contiguous())
            self._packed_version = self._weight._version
        product: torch.Tensor = _ops()._linear_pointwise(inputs, self._packed, bias, "none", [], "")
        return product


def is_available() -> bool:
    """Whether this torch has the products, and is allowed to use them."""
    backend: Any = torch.backends.mkldnn
    has_both = hasattr(_ops(), "_reorder_linear_weight") and hasattr(_ops(), "_linear_pointwise")
    return bool(has_both and backend.is_available() and backend.enabled)


def _ops() -> Any:
    return torch.ops.mkldnn
