"""Algorithms with a reward at each token, which includes the KL to the reference."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..maths.shaping import token_rewards
from ..settings import NotNegative
from .base import Algorithm, CreditInputs


@dataclass(frozen=True, kw_only=True)
class TokenRewardAlgorithm(Algorithm):
    """r_t = −β (log π_old − log π_ref), and at the last token the completion's reward on top.

    Where an environment rewards turns, each of these is at its turn's last token, and the rest of the reward at the
    trajectory's last.

    In the reward the KL is the value of k1, which is unbiased, and needs no gradient: `kl_coefficient`, which belongs
    to the loss, can stay 0.
    """

    kl_reward_coefficient: NotNegative = 0.0
    """The initial β; the current one is in `CreditInputs`, because a trainer may adapt it. 0 needs no reference."""

    @property
    def needs_reference(self) -> bool:
        return super().needs_reference or self.kl_reward_coefficient > 0

    @property
    def first_kl_coefficient(self) -> float:
        return self.kl_reward_coefficient

    def _token_rewards(self, inputs: CreditInputs) -> Tensor:
        if inputs.turn_rewards_BT is None:
            return token_rewards(
                inputs.rewards_B, inputs.kl_BT, inputs.mask_BT, kl_coefficient=inputs.kl_reward_coefficient
            )
        turn_rewards_BT = inputs.turn_rewards_BT.masked_fill(~inputs.mask_BT, 0)
        rest_B = inputs.rewards_B - turn_rewards_BT.sum(-1)
        return turn_rewards_BT + token_rewards(
            rest_B, inputs.kl_BT, inputs.mask_BT, kl_coefficient=inputs.kl_reward_coefficient
        )
