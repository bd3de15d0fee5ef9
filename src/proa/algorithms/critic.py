"""Algorithms with a critic, which predicts returns and is trained together with the policy."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..settings import NotNegative
from .base import Algorithm


@dataclass(frozen=True, kw_only=True)
class CriticAlgorithm(Algorithm):
    """An algorithm that assigns credit with the critic's values (`CreditInputs.values_BT`) and gives it returns."""

    needs_critic: ClassVar[bool] = True

    value_coefficient: NotNegative = 0.5
    """c: the weight of the critic's loss relative to the policy's."""
    bootstrap_truncated: bool = False
    """Add the critic's value after a completion that was truncated at the limit. Off by default, because the limit is
    part of the task: the reward is given all the same, and the added value would reward never ending."""

    @abstractmethod
    def value_loss(self, values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """The critic's loss per token, to be summed with `value_coefficient` × the policy's weights; zero where
        masked."""
