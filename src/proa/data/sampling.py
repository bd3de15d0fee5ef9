"""How completions are sampled, and what a sampled completion is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import torch

FinishReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings of generation. `temperature=0` is greedy, `top_k=0` and `top_p=1` keep all tokens."""

    group_size: int = 8
    max_new_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion: its tokens and the log-probability of each.

    The log-probabilities are the policy's at the sampling temperature (at 1 if greedy), over the whole
    vocabulary: top-k and top-p choose which tokens may come, and do not change what is recorded, so the
    trainer's pass over the same tokens gives the same numbers. The end token, if it came, is the last one;
    `length` means that it never came.
    """

    tokens: torch.Tensor
    log_probs: torch.Tensor
    finish_reason: FinishReason

    def __len__(self) -> int:
        return self.tokens.shape[0]
