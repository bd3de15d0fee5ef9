"""An algorithm outside the package, in one file, as a user would write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from proa.algorithms import Algorithm, GroupAlgorithm, TokenLoss, TokenLossInputs
from proa.maths.reductions import token_mean

computed: list[float] = []
"""The `scale` of each loss that was computed in this process."""


@dataclass(frozen=True, kw_only=True)
class Signed(GroupAlgorithm):
    """REINFORCE with the sign of the difference to the group's mean."""

    scale: Annotated[float, Field(gt=0)] = 1.0

    def advantages(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        sums_G = torch.zeros(int(groups_B.max()) + 1, dtype=rewards_B.dtype).index_add(0, groups_B, rewards_B)
        counts_G = torch.bincount(groups_B)
        return torch.sign(rewards_B - (sums_G / counts_G)[groups_B])

    def token_weights(self, mask_BT: Tensor, max_new_tokens: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return token_mean(mask_BT, dtype=dtype)

    def token_loss(self, inputs: TokenLossInputs) -> TokenLoss:
        computed.append(self.scale)
        usual = super().token_loss(inputs)
        loss_BT = -self.scale * inputs.advantages_BT * inputs.log_probs_BT
        return TokenLoss(loss_BT.masked_fill(~inputs.mask_BT, 0), usual.statistics)


@dataclass(frozen=True, kw_only=True)
class Ordered(Signed):
    """Has settings for which YAML has no form of its own."""

    order: tuple[int, ...] = ()
    pairs: tuple[tuple[str, float], ...] | None = None
    names: frozenset[str] = frozenset()


class Forgotten(Signed):
    """Lacks `@dataclass`."""

    power: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Unfinished(Algorithm):
    """Has not what every algorithm needs."""


NOT_ONE = 3
MADE = Signed()


@dataclass(frozen=True, kw_only=True)
class Pairs(Signed):
    """Has a setting without a default, and one that two of them decide."""

    least: int
    most: int = 3
    min_group = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise ValueError("least is more than most")
