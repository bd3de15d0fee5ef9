"""A probe of weights: a few tokens that the trainer has scored with them, for makers to score with their engine.

Where the two compute different things, because of a head that was not loaded, a layer that is missing or another
adapter, training would continue on samples of another policy. The probe finds that at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..data.experience import BufferItem, merge
from ..errors import ProaError
from ..model_trials import uncompiled

if TYPE_CHECKING:
    from ..policy.policy import Policy

SEQUENCES = 4
TOKENS = 32
"""Of each sequence, at the most: an engine scores them one by one."""
ALLOWED = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.15}
"""How far the log-probabilities of trainer and engine may be apart on average, by the coarser dtype of the two. What
rounding gives is about 1e-6 in float32 and 0.01 in bfloat16."""


class ProbeError(ProaError):
    """An engine computes other log-probabilities than the trainer does with the same weights."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Token sequences, and the log-probability of each token but the first."""

    sequences: tuple[tuple[int, ...], ...]
    log_probs: tuple[tuple[float, ...], ...]
    dtype: torch.dtype
    """In which the trainer computes."""

    @classmethod
    @torch.no_grad()
    def of(cls, policy: Policy, sequences: Sequence[Sequence[int]]) -> Probe:
        """The log-probabilities that a policy gives these sequences now."""
        kept = tuple(tuple(tokens[:TOKENS]) for tokens in sequences if len(tokens) > 1)[:SEQUENCES]
        if not kept:
            return cls((), (), policy.model.dtype)
        items = [
            BufferItem(
                torch.tensor(tokens), torch.zeros(len(tokens) - 1), attention_mask=torch.ones(len(tokens)).bool()
            )
            for tokens in kept
        ]
        batch = merge(items)
        batch.to_device(policy.model.device)
        with uncompiled(policy.model):
            log_probs_BA = policy.statistics(batch, temperature=1.0).log_probs_BA.tolist()
        rows = tuple(tuple(row[: len(tokens) - 1]) for row, tokens in zip(log_probs_BA, kept, strict=True))
        return cls(kept, rows, policy.model.dtype)

    def check(self, scored: Sequence[torch.Tensor], version: int, dtype: torch.dtype | None = None) -> float:
        """How far the engine's scores are from the trainer's, on average; raises if that is more than rounding."""
        if not self.sequences:
            return 0.0
        own, other = torch.cat(list(scored)).float(), torch.tensor([value for row in self.log_probs for value in row])
        gap = float((own - other).abs().mean())
        allowed = allowed_gap(self.dtype, dtype)
        if not gap <= allowed:
            raise ProbeError(
                f"with the weights of version {version} the engine gives {len(own)} tokens a log-probability of "
                f"{float(own.mean()):.4f} on average, and the trainer {float(other.mean()):.4f}: {gap:.4f} apart, and "
                f"{allowed:g} is allowed. They do not compute the same policy"
            )
        return gap


def allowed_gap(trainer: torch.dtype, engine: torch.dtype | None = None) -> float:
    """How far log-probabilities of a trainer and an engine of these dtypes may be apart on average."""
    return max(ALLOWED.get(one, ALLOWED[torch.bfloat16]) for one in (trainer, engine or trainer))
