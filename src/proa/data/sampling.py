"""Settings of sampling, and a sampled completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import torch

FinishReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings of generation. `temperature=0` is greedy; `top_k=0`, `top_p=1` and `min_p=0` keep all tokens.

    They apply in the order of transformers: the penalty, the temperature, top-k, top-p, min-p.
    """

    group_size: int = 8
    max_new_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    """Keeps tokens whose probability is at least this share of the most likely token's."""
    repetition_penalty: float = 1.0
    """Logits of tokens that occur in the prompt or completion are divided by it, or multiplied if negative."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, after the token that completes one of them."""

    def __post_init__(self) -> None:
        given: Any = self.stop  # a list, as files have it, or one text
        object.__setattr__(self, "stop", (given,) if isinstance(given, str) else tuple(given))


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion: its tokens and the log-probability of each.

    The log-probabilities are the policy's at the sampling temperature (at 1 if greedy), over the whole
    vocabulary: top-k, top-p, min-p and the repetition penalty affect which tokens are drawn, not the recorded numbers,
    so the trainer's pass over the same tokens gives the same. The end token, or the one that completed a stop string,
    is the last token, in full; `length` means that neither was sampled.
    """

    tokens: torch.Tensor
    log_probs: torch.Tensor
    finish_reason: FinishReason

    def __len__(self) -> int:
        return self.tokens.shape[0]
