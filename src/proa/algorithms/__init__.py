"""Algorithms: each one small file with its equation and paper, varied by passing it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..errors import SettingError
from ..spelling import did_you_mean
from .base import Algorithm, Credit, CreditInputs, GroupAlgorithm, TokenLoss, TokenLossInputs
from .cispo import CISPO
from .critic import CriticAlgorithm
from .dapo import DAPO
from .decoupled import DecoupledPPO
from .dr_grpo import DrGRPO
from .grpo import GRPO
from .gspo import GSPO
from .ppo import PPO
from .reinforce_pp import ReinforcePlusPlus, ReinforcePlusPlusBaseline
from .rloo import RLOO
from .token_rewards import TokenRewardAlgorithm

__all__ = [
    "ALGORITHMS", "CISPO", "DAPO", "GRPO", "GSPO", "PPO", "RLOO", "Algorithm", "Credit", "CreditInputs",
    "CriticAlgorithm", "DecoupledPPO", "DrGRPO", "GroupAlgorithm", "ReinforcePlusPlus", "ReinforcePlusPlusBaseline",
    "TokenLoss", "TokenLossInputs", "TokenRewardAlgorithm", "build_algorithm",
]  # fmt: skip

_KINDS: tuple[type[Algorithm], ...] = (
    GRPO, DrGRPO, DAPO, RLOO, GSPO, CISPO, DecoupledPPO, PPO, ReinforcePlusPlus, ReinforcePlusPlusBaseline,
)  # fmt: skip
ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in _KINDS}


def build_algorithm(name: str, /, **params: Any) -> Algorithm:
    """The algorithm that a configuration file names, with its settings.

    >>> build_algorithm("dapo", overlong_buffer=64).clip_high
    0.28
    """
    if name not in ALGORITHMS:
        raise SettingError(f"no algorithm {name!r}{did_you_mean(name, ALGORITHMS)} (known: {', '.join(ALGORITHMS)})")
    algorithm = ALGORITHMS[name]
    settings = [field.name for field in fields(algorithm)]
    for param in params:
        if param not in settings:
            hint = did_you_mean(param, settings)
            raise SettingError(f"algorithm {name!r} has no setting {param!r}{hint} (it has: {', '.join(settings)})")
    return algorithm(**params)
