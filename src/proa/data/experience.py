"""A batch of experience: what makers send and trainers learn from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass
class Experience:
    """Sampled sequences and what is known of them, as tensors with leading size B.

    `sequences` is the prompt and its completion, `(B, S)`; `action_log_probs`, `kl`, `advantages`,
    `values` and `action_mask` speak of the completion's tokens; `reward` of the sequence.
    Whatever the maker did not compute is None, and the trainer computes it.
    """

    sequences: torch.Tensor
    action_log_probs: torch.Tensor
    values: torch.Tensor | None = None
    reward: torch.Tensor | None = None
    kl: torch.Tensor | None = None
    advantages: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None
    action_mask: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.sequences.shape[0]

    def to_device(self, device: torch.device | str | int) -> None:
        """Move every tensor, in place."""
        for name, tensor in self._tensors():
            setattr(self, name, tensor.to(device))

    def pin_memory(self) -> Experience:
        """Page-lock every tensor for faster copies to a GPU, in place; returns itself for data loaders."""
        for name, tensor in self._tensors():
            setattr(self, name, tensor.pin_memory())
        return self

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return [(name, tensor) for name, tensor in pairs if tensor is not None]
