"""Algorithms: one small file each, with its equation and paper.

Your own algorithm is a frozen dataclass derived from `Algorithm` or `GroupAlgorithm`, in any module. A run takes it as
an object (`recipes.grpo(algorithm=MyAlgorithm())`), by dotted path (`algorithm: my_module:MyAlgorithm`), or by a name
that a package adds:

    [project.entry-points."proa.algorithms"]
    my_algorithm = "my_package.algorithms:MyAlgorithm"
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..errors import ProaError, SettingError, UnknownNameError
from ..registry import Registry
from ..settings import make_settings
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
    "TokenLoss", "TokenLossInputs", "TokenRewardAlgorithm", "build_algorithm", "find_algorithm",
]  # fmt: skip

_KINDS: tuple[type[Algorithm], ...] = (
    GRPO, DrGRPO, DAPO, RLOO, GSPO, CISPO, DecoupledPPO, PPO, ReinforcePlusPlus, ReinforcePlusPlusBaseline,
)  # fmt: skip
ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in _KINDS}

_REGISTRY = Registry(
    "algorithm",
    "proa.algorithms",
    {name: f"{kind.__module__}:{kind.__qualname__}" for name, kind in ALGORITHMS.items()},
    UnknownNameError,
)


def build_algorithm(name: str, /, **params: Any) -> Algorithm:
    """The algorithm that a configuration names, with its settings.

    >>> build_algorithm("dapo", overlong_buffer=64).clip_high
    0.28
    """
    kind = find_algorithm(name)
    try:
        return make_settings(kind, params, f"algorithm {name!r}")
    except ProaError:
        raise
    except Exception as error:  # the user's class may raise anything
        raise SettingError(f"algorithm {name!r}: {type(error).__name__}: {error}") from error


def find_algorithm(name: str, *, others: Collection[str] = ()) -> type[Algorithm]:
    """The class that a configuration names; `others` are suggested too where nothing has the name."""
    kind = _REGISTRY.find(name, others=others)
    if isinstance(kind, Algorithm):
        raise UnknownNameError(f"algorithm {name!r} is an object: name its class")
    if not isinstance(kind, type) or not issubclass(kind, Algorithm):
        raise UnknownNameError(f"algorithm {name!r} is not an algorithm: derive a class from proa.algorithms.Algorithm")
    return kind
