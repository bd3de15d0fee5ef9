"""Advantages with a critic: how much better things went from each token on than the critic expected."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def generalized_advantages(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    *,
    gamma: float,
    lam: float,
    bootstrap_B: Tensor | None = None,
) -> Tensor:
    """Generalized advantage estimation (Schulman et al., arXiv:1506.02438, eq. 16). Zero where masked.

        δ_t = r_t + γ V_{t+1} − V_t
        A_t = Σ_l (γλ)^l δ_{t+l}, computed from the end as A_t = δ_t + γλ A_{t+1}

    `bootstrap_B` stands for V after a row's last real token: what was still to come of a completion that was cut
    off at its limit. It is 0, or None for all, where the completion ended. λ = 1 gives discounted returns minus
    values, λ = 0 the δ themselves. A masked slot between real tokens is no step in time: t + 1 is the next real one.

    >>> rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.25, 0.5]])
    >>> generalized_advantages(rewards, values, torch.ones(1, 3, dtype=torch.bool), gamma=1.0, lam=0.5).tolist()
    [[0.0, 0.5, 0.5]]
    """
    advantages_BT = torch.zeros_like(rewards_BT + values_BT)  # of the dtype that both fit in
    advantage_B = advantages_BT.new_zeros(len(mask_BT))
    next_value_B = advantage_B if bootstrap_B is None else bootstrap_B.to(advantage_B.dtype)
    for t in reversed(range(mask_BT.shape[1])):
        real_B = mask_BT[:, t]  # what is computed from a masked slot is not taken, so it may be anything
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        advantage_B = torch.where(real_B, delta_B + gamma * lam * advantage_B, advantage_B)
        next_value_B = torch.where(real_B, values_BT[:, t], next_value_B)
        advantages_BT[:, t] = advantage_B
    return advantages_BT.masked_fill(~mask_BT, 0)


def rewards_to_go(rewards_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Σ_{k≥t} r_k over the real tokens: what is still to be won from each token on. Zero where masked.

    >>> rewards_to_go(torch.tensor([[-1.0, 0.0, 3.0, 9.0]]), torch.tensor([[True, True, True, False]])).tolist()
    [[2.0, 3.0, 3.0, 0.0]]
    """
    return generalized_advantages(rewards_BT, torch.zeros_like(rewards_BT), mask_BT, gamma=1.0, lam=1.0)
