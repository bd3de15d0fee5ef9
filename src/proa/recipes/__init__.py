"""Whole jobs from a configuration: each takes `callbacks=` and returns the final `TrainState`."""

from .grpo import grpo
from .sft import sft

__all__ = ["grpo", "sft"]
