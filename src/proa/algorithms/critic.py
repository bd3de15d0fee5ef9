"""Algorithms with a critic: something that says what was to be expected, and learns beside the policy."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..settings import NotNegative
from .base import Algorithm


@dataclass(frozen=True, kw_only=True)
class CriticAlgorithm(Algorithm):
    """An algorithm whose credit needs the critic's values (`CreditInputs.values_BT`) and gives it returns to learn."""

    needs_critic: ClassVar[bool] = True

    value_coefficient: NotNegative = 0.5
    """c: what the critic's loss counts beside the policy's."""
    bootstrap_truncated: bool = False
    """Expect more of a completion that was cut off at the limit, as the critic does. Off, because the limit is part of
    the task: the reward comes all the same, and what the critic expects beyond would pay for never ending."""

    @abstractmethod
    def value_loss(self, values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """The critic's loss per token, to be summed with `value_coefficient` × the policy's weights; zero where
        masked."""
