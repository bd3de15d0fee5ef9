"""Whole jobs from a configuration: each takes `callbacks=` and returns the final state, which knows its folders."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from ..config import RunConfig
from ..data.state import LoopState
from ..lifecycle.manager import Callbacks
from .arguments import DetachedArguments
from .detached import (
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
from .starting import start
from .supervised import dpo, reward_model, sft

__all__ = [
    "cispo", "dapo", "decoupled", "dpo", "dr_grpo", "grpo", "gspo", "ppo", "reinforce_pp", "reinforce_pp_baseline",
    "reward_model", "rloo", "run", "sft",
]  # fmt: skip


def run(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[DetachedArguments]
) -> LoopState:
    """Run what the configuration says, whatever its algorithm. It takes what `start` takes."""
    return start(config, callbacks=callbacks, **changes)
