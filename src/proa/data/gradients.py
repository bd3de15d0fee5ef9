"""The gradients of a step, read only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Gradients(Mapping[str, "torch.Tensor"]):
    """Gradients by the names of their parameters, read only: the whole step's, summed over micro-batches and trainers
    in float32, before they are clipped.

    A parameter that the step did not use has none. Names of a separate critic begin with `critic.`. The tensors are the
    optimizer's own and are cleared after the step, so copy what you keep.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self._versions = {name: tensor._version for name, tensor in self._tensors.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<gradients of {len(self)} parameters>"

    def changed(self) -> list[str]:
        """The names of gradients that were changed in place."""
        return [name for name, tensor in self._tensors.items() if tensor._version != self._versions[name]]
