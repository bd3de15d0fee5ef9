"""Sums over the micro-batches of a step, kept on the device: they are read once, at the end of the step."""

from __future__ import annotations

import torch


class Totals:
    """Sums by name, in float64. Reading one waits for the device, so nothing is read before the end."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, name: str, values: torch.Tensor) -> None:
        """Add the sum of some numbers."""
        total = values.detach().sum().double()
        self._sums[name] = self._sums[name] + total if name in self._sums else total

    def read(self) -> dict[str, float]:
        """All sums, in one transfer."""
        if not self._sums:
            return {}
        return dict(zip(self._sums, torch.stack(list(self._sums.values())).tolist(), strict=True))
