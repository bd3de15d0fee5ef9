"""Terms added to rewards before they become advantages."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import SettingError


def overlong_penalty(lengths_B: Tensor, *, max_length: int, buffer: int) -> Tensor:
    """DAPO's soft overlong punishment (arXiv:2503.14476, eq. 13), in [−1, 0].

    0 up to max_length − buffer, then falling linearly to −1 at max_length: clip((max_length − buffer − |o|) /
    buffer, −1, 0). Lengths may be whole numbers or floats, which keep their type.

    >>> overlong_penalty(torch.tensor([50, 80, 90, 100]), max_length=100, buffer=20).tolist()
    [0.0, 0.0, -0.5, -1.0]
    """
    if not 0 < buffer <= max_length:
        raise SettingError(
            f"the overlong buffer must be 1 to {max_length} tokens (the longest completion), not {buffer}"
        )
    free = max_length - buffer
    return torch.clamp((free - lengths_B) / buffer, -1, 0)


def token_rewards(score_B: Tensor, kl_BT: Tensor | None, mask_BT: Tensor, *, kl_coefficient: float) -> Tensor:
    """−β·KL_t at each real token, and the completion's score on top at the last (arXiv:1909.08593). Zero where masked.

    `kl_BT` is log π_old − log π_ref of the sampled token; with β = 0 it is not looked at and may be None. An empty
    completion has no token to be rewarded at: its score is lost.

    >>> kl, mask = torch.tensor([[0.5, 1.0, 9.0]]), torch.tensor([[True, True, False]])
    >>> token_rewards(torch.tensor([3.0]), kl, mask, kl_coefficient=0.5).tolist()
    [[-0.25, 2.5, 0.0]]
    """
    is_last_BT = mask_BT & (mask_BT.cumsum(dim=1) == mask_BT.sum(dim=1, keepdim=True))
    rewards_BT = score_B[:, None].expand_as(mask_BT).masked_fill(~is_last_BT, 0)
    if not kl_coefficient:  # left out rather than multiplied: 0 × inf is NaN
        return rewards_BT
    if kl_BT is None:
        raise SettingError(f"a KL coefficient of {kl_coefficient} needs the KL of each token to the reference model")
    return rewards_BT - kl_coefficient * kl_BT.masked_fill(~mask_BT, 0)


def adapted_kl_coefficient(
    coefficient: float, observed_kl: float, *, target: float, horizon: float, samples: int
) -> float:
    """β for the next batch: larger where the policy went further from the reference than `target`, else smaller.

    The proportional controller of Ziegler et al. (arXiv:1909.08593), as their code has it:

        e = clip(KL / target − 1, −0.2, 0.2),   β ← β (1 + e · samples / horizon)

    KL is that of a whole completion, the mean over completions of its tokens' sum. One batch changes β by a fifth
    at most, also where it has more samples than the horizon. A KL of NaN changes nothing: it would stay
    in β for ever.

    >>> adapted_kl_coefficient(0.1, observed_kl=12.0, target=6.0, horizon=10_000, samples=500)
    0.101
    """
    if math.isnan(observed_kl):
        return coefficient
    error = min(max(observed_kl / target - 1, -0.2), 0.2)
    return coefficient * (1 + error * min(samples / horizon, 1))
