"""Whole jobs from a configuration: each takes `callbacks=` and returns the final `TrainState`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..config import RunConfig
from ..data.state import TrainState
from ..lifecycle.manager import Callbacks
from .detached_run import detached, detached_job
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
from .given import Given
from .job import Job
from .learning import SupervisedRun, dpo, learn, reward_model, sft
from .placing import Listeners

__all__ = [
    "cispo", "dapo", "decoupled", "dpo", "dr_grpo", "grpo", "gspo", "ppo", "reinforce_pp", "reinforce_pp_baseline",
    "reward_model", "rloo", "run", "sft",
]  # fmt: skip


def run(
    config: RunConfig, *, callbacks: Callbacks = None, resume: str | None = None, allow_changes: bool = False
) -> TrainState:
    """The recipe of the algorithm that the configuration names; `resume` and `allow_changes` as in `detached`."""
    recipe = learn if config.is_supervised else detached
    return recipe(config, callbacks=callbacks, resume=resume, allow_changes=allow_changes)


def job_of(config: RunConfig, given: Given, listeners: Listeners, journal: Sequence[Mapping[str, Any]] = ()) -> Job:
    """A run of that configuration put together, whatever it trains; for `carry_out`."""
    if config.is_supervised:
        return SupervisedRun(config, given, listeners)
    return detached_job(config, given, listeners, journal)
