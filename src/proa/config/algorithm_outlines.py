"""What is known of the algorithms that come with Proa without importing them, which needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_OF_ALL: Mapping[str, Any] = {
    "clip_low": 0.2, "clip_high": 0.2, "kl_coefficient": 0.0, "kl_estimator": "k3", "entropy_coefficient": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class AlgorithmOutline:
    """An algorithm's settings with their defaults, and how many completions of a prompt it needs."""

    settings: Mapping[str, Any] = field(default_factory=lambda: _OF_ALL)
    min_group: int = 2


OUTLINES = {
    "grpo": AlgorithmOutline(),
    "dr_grpo": AlgorithmOutline(),
    "dapo": AlgorithmOutline({**_OF_ALL, "clip_high": 0.28, "overlong_buffer": 0}),
    "rloo": AlgorithmOutline(),
    "gspo": AlgorithmOutline({**_OF_ALL, "clip_low": 3e-4, "clip_high": 4e-4}),
    "cispo": AlgorithmOutline({**_OF_ALL, "clip_low": 1.0, "clip_high": 4.0}),
    "decoupled": AlgorithmOutline(),
    "ppo": AlgorithmOutline(
        {
            **_OF_ALL, "value_coefficient": 0.5, "bootstrap_truncated": False, "kl_reward_coefficient": 0.0,
            "gamma": 1.0, "lam": 0.95, "value_clip": 0.2, "whiten": True, "kl_target": None, "kl_horizon": 10_000,
        },
        min_group=1,
    ),
    "reinforce_pp": AlgorithmOutline({**_OF_ALL, "kl_reward_coefficient": 0.0}, min_group=1),
    "reinforce_pp_baseline": AlgorithmOutline({**_OF_ALL, "kl_estimator": "k2"}),
}  # fmt: skip
