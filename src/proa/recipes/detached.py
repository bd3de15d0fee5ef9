"""Detached RL by the name of its algorithm. Each takes what `start` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from ..config import RunConfig
from ..data.state import LoopState
from ..lifecycle.manager import Callbacks
from .arguments import DetachedArguments
from .starting import start


def ppo(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[DetachedArguments]
) -> LoopState:
    """PPO with actor, critic and frozen reference."""
    return start(config, "ppo", callbacks=callbacks, **changes)


def grpo(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[DetachedArguments]
) -> LoopState:
    """GRPO: completions of a prompt compared with one another."""
    return start(config, "grpo", callbacks=callbacks, **changes)


def dr_grpo(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[DetachedArguments]
) -> LoopState:
    """Dr.GRPO: GRPO without its two biases."""
    return start(config, "dr_grpo", callbacks=callbacks, **changes)


def dapo(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[DetachedArguments]
) -> LoopState:
    """DAPO: wider clip above, groups without a difference replaced, every token counts the same."""
    return start(config, "dapo", callbacks=callbacks, **changes)


def rloo(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[DetachedArguments]
) -> LoopState:
    """RLOO: REINFORCE with the other completions of the prompt as baseline."""
    return start(config, "rloo", callbacks=callbacks, **changes)


def gspo(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[DetachedArguments]
) -> LoopState:
    """GSPO: the ratio is a whole completion's."""
    return start(config, "gspo", callbacks=callbacks, **changes)


def cispo(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[DetachedArguments]
) -> LoopState:
    """CISPO: the ratio is clipped as a weight, and no token loses its gradient."""
    return start(config, "cispo", callbacks=callbacks, **changes)


def reinforce_pp(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[DetachedArguments]
) -> LoopState:
    """REINFORCE++: no critic and no group, advantages normalised over the batch."""
    return start(config, "reinforce_pp", callbacks=callbacks, **changes)


def reinforce_pp_baseline(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[DetachedArguments]
) -> LoopState:
    """REINFORCE++ with the group's mean as baseline."""
    return start(config, "reinforce_pp_baseline", callbacks=callbacks, **changes)


def decoupled(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[DetachedArguments]
) -> LoopState:
    """PPO's clip around a recent policy, weighted from the one that sampled: for stale data."""
    return start(config, "decoupled", callbacks=callbacks, **changes)
