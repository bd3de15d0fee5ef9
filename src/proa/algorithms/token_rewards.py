"""Algorithms that see a completion as steps: a reward at each token, of which the reference's KL is a part."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..maths.shaping import token_rewards
from ..settings import NotNegative
from .base import Algorithm, CreditInputs


@dataclass(frozen=True, kw_only=True)
class TokenRewardAlgorithm(Algorithm):
    """r_t = −β (log π_old − log π_ref), and at the last token the completion's reward on top.

    As a part of the reward the KL is the value of k1, which is unbiased, and needs no gradient of its own:
    `kl_coefficient`, which is of the loss, can stay 0.
    """

    kl_reward_coefficient: NotNegative = 0.0
    """β, at first: what counts is that of `CreditInputs`, which a trainer may adapt. 0 needs no reference."""

    @property
    def needs_reference(self) -> bool:
        return super().needs_reference or self.kl_reward_coefficient > 0

    @property
    def first_kl_coefficient(self) -> float:
        return self.kl_reward_coefficient

    def _token_rewards(self, inputs: CreditInputs) -> Tensor:
        return token_rewards(
            inputs.rewards_B, inputs.kl_BT, inputs.mask_BT, kl_coefficient=inputs.kl_reward_coefficient
        )
