"""Advantages without a critic: how much better a completion did than others of the same prompt.

`groups_B` says which completions belong together: indices 0 to n-1, in any order. A NaN reward makes its own
group NaN and touches no other.
"""

from __future__ import annotations

import torch
from torch import Tensor

NOISE = 1e-6
"""Rewards of one group count as equal below this difference, relative to the largest of them (or to 1)."""


def group_relative(rewards_B: Tensor, groups_B: Tensor, *, scale_by_std: bool = True, epsilon: float = 1e-4) -> Tensor:
    """Rewards against the mean of their group, in its standard deviations (GRPO, arXiv:2402.03300).

    A_i = (r_i − mean(r)) / (std(r) + ε), with ddof 1; without `scale_by_std` only r_i − mean(r) (Dr.GRPO,
    arXiv:2503.20783). Equal rewards give exactly 0, and so does a group of one.

    >>> group_relative(torch.tensor([1.0, 0.0, 0.5, 0.25]), torch.zeros(4, dtype=torch.long))
    tensor([ 1.3172, -1.0245,  0.1464, -0.4391])
    """
    deviations_B = rewards_B - _group_mean(rewards_B, groups_B)
    advantages_B = deviations_B
    if scale_by_std:
        freedom_B = (_group_size(rewards_B, groups_B) - 1).clamp(min=1)
        std_B = (_group_sum(deviations_B.square(), groups_B) / freedom_B).sqrt()
        advantages_B = deviations_B / (std_B + epsilon)
    return advantages_B.masked_fill(equal_within_group(rewards_B, groups_B), 0)


def leave_one_out(rewards_B: Tensor, groups_B: Tensor) -> Tensor:
    """Rewards against the mean of the others in their group (RLOO, arXiv:2402.14740).

    A_i = r_i − 1/(G−1) Σ_{j≠i} r_j, which is G/(G−1) (r_i − mean(r)). Equal rewards give exactly 0, and so
    does a group of one.

    >>> leave_one_out(torch.tensor([1.0, 0.0, 0.5, 0.25]), torch.zeros(4, dtype=torch.long))
    tensor([ 0.7500, -0.5833,  0.0833, -0.2500])
    """
    deviations_B = rewards_B - _group_mean(rewards_B, groups_B)
    size_B = _group_size(rewards_B, groups_B)
    advantages_B = deviations_B * size_B / (size_B - 1).clamp(min=1)
    return advantages_B.masked_fill(equal_within_group(rewards_B, groups_B), 0)


def equal_within_group(rewards_B: Tensor, groups_B: Tensor) -> Tensor:
    """True at every member of a group whose rewards are all equal but for float noise: 0.1 + 0.2 is 0.3."""
    top_B, bottom_B = _group_extreme(rewards_B, groups_B, "amax"), _group_extreme(rewards_B, groups_B, "amin")
    scale_B = torch.maximum(top_B.abs(), bottom_B.abs()).clamp(min=1)
    return top_B - bottom_B < NOISE * scale_B  # strictly: an infinite reward is no noise


def _group_mean(values_B: Tensor, groups_B: Tensor) -> Tensor:
    return _group_sum(values_B, groups_B) / _group_size(values_B, groups_B)


def _group_size(values_B: Tensor, groups_B: Tensor) -> Tensor:
    return _group_sum(torch.ones_like(values_B), groups_B)


def _group_sum(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """The total of each element's group, in the element's place; there are at most B groups."""
    return torch.zeros_like(values_B).index_add(0, groups_B, values_B)[groups_B]


def _group_extreme(values_B: Tensor, groups_B: Tensor, reduce: str) -> Tensor:
    extremes_B = torch.zeros_like(values_B).scatter_reduce(0, groups_B, values_B, reduce, include_self=False)
    return extremes_B[groups_B]
