"""Whole jobs from a configuration: each takes `callbacks=` and returns the final `TrainState`."""

from __future__ import annotations

from ..config import RunConfig
from ..data.state import TrainState
from ..lifecycle.manager import Callbacks
from .detached_run import detached
from .family import (
    cispo,
    dapo,
    decoupled,
    dr_grpo,
    grpo,
    gspo,
    ppo,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
)
from .learning import dpo, learn, reward_model, sft

__all__ = [
    "cispo", "dapo", "decoupled", "dpo", "dr_grpo", "grpo", "gspo", "ppo", "reinforce_pp", "reinforce_pp_baseline",
    "reward_model", "rloo", "run", "sft",
]  # fmt: skip


def run(config: RunConfig, *, callbacks: Callbacks = None, resume: str | None = None) -> TrainState:
    """The recipe of the algorithm that the configuration names; `resume` as in `detached`."""
    return (learn if config.is_supervised else detached)(config, callbacks=callbacks, resume=resume)
