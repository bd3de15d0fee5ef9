"""What is known of the algorithms that come with Proa without importing them, which needs torch."""

from __future__ import annotations

from dataclasses import dataclass

_OF_ALL = ("clip_low", "clip_high", "kl_coefficient", "kl_estimator", "entropy_coefficient")


@dataclass(frozen=True)
class AlgorithmOutline:
    """The names of an algorithm's settings, and how many completions of a prompt it needs."""

    settings: tuple[str, ...] = _OF_ALL
    min_group: int = 2


OUTLINES = {
    "grpo": AlgorithmOutline(),
    "dr_grpo": AlgorithmOutline(),
    "dapo": AlgorithmOutline((*_OF_ALL, "overlong_buffer")),
    "rloo": AlgorithmOutline(),
    "gspo": AlgorithmOutline(),
    "cispo": AlgorithmOutline(),
    "decoupled": AlgorithmOutline(),
    "ppo": AlgorithmOutline(
        (
            *_OF_ALL, "value_coefficient", "bootstrap_truncated", "kl_reward_coefficient", "gamma", "lam", "value_clip",
            "whiten", "kl_target", "kl_horizon",
        ),
        min_group=1,
    ),
    "reinforce_pp": AlgorithmOutline((*_OF_ALL, "kl_reward_coefficient"), min_group=1),
    "reinforce_pp_baseline": AlgorithmOutline(),
}  # fmt: skip
