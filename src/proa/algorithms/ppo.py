"""PPO: proximal policy optimization, with a critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import SettingError
from ..maths.gae import generalized_advantages
from ..maths.reductions import token_mean
from ..maths.shaping import adapted_kl_coefficient
from ..maths.values import clipped_value_loss
from ..maths.whitening import whiten
from ..settings import Positive, Share
from .base import Credit, CreditInputs
from .critic import CriticAlgorithm
from .token_rewards import TokenRewardAlgorithm


@dataclass(frozen=True, kw_only=True)
class PPO(TokenRewardAlgorithm, CriticAlgorithm):
    """Schulman et al., "Proximal policy optimization algorithms", arXiv:1707.06347; on language models Ziegler et al.,
    "Fine-tuning language models from human preferences", arXiv:1909.08593.

        r_t  = −β (log π_old − log π_ref), plus the completion's reward at its last token
        δ_t  = r_t + γ V_{t+1} − V_t,   A_t = Σ_l (γλ)^l δ_{t+l},   R_t = A_t + V_t
        A_t  ← (A_t − mean) / √(var + 1e-8)                    over the batch's tokens, after R_t is taken
        loss = 1/Σ|o_i| Σ_i Σ_t [−min(ρ A_t, clip(ρ, 1 − ε, 1 + ε) A_t) + c ½ max((V − R_t)², (V_clipped − R_t)²)]

    One completion per prompt is enough: the critic predicts the return. With `kl_target`, β follows the observed
    KL, starting from `kl_reward_coefficient`.
    """

    name: ClassVar[str] = "ppo"

    gamma: Share = 1.0
    lam: Share = 0.95
    """0 relies on the critic for everything after a token, 1 not at all."""
    value_clip: Positive = 0.2
    """A value that has moved further than this towards its return is not moved further; inf disables it."""
    whiten: bool = True
    kl_target: Positive | None = None
    """The KL of a whole completion to aim for by adapting β; None keeps β fixed."""
    kl_horizon: Positive = 10_000
    """The number of samples above or below the target that change β by a fifth at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_target is not None and not self.kl_reward_coefficient:
            raise SettingError("kl_target needs a kl_reward_coefficient to start from, such as 0.05: 0 stays 0")

    def assign_credit(self, inputs: CreditInputs) -> Credit:
        if inputs.values_BT is None:
            raise SettingError("ppo needs the critic's value of each token")
        advantages_BT = generalized_advantages(
            self._token_rewards(inputs),
            inputs.values_BT,
            inputs.mask_BT,
            gamma=self.gamma,
            lam=self.lam,
            bootstrap_B=inputs.bootstrap_B,
        )
        returns_BT = advantages_BT + inputs.values_BT.detach().masked_fill(~inputs.mask_BT, 0)
        return Credit(whiten(advantages_BT, inputs.mask_BT) if self.whiten else advantages_BT, returns_BT)

    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return token_mean(mask_BT, dtype=dtype)

    def adapted_kl_coefficient(self, coefficient: float, kl_B: Tensor) -> float:
        if self.kl_target is None:
            return coefficient
        return adapted_kl_coefficient(
            coefficient, float(kl_B.mean()), target=self.kl_target, horizon=self.kl_horizon, samples=len(kl_B)
        )

    def value_loss(self, values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
        return clipped_value_loss(values_BT, old_values_BT, returns_BT, mask_BT, clip=self.value_clip)
