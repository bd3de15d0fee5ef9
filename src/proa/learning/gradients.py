"""Shows a step's gradients to hooks before the optimizer's update."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ..data.state import LoopState
from ..lifecycle.gradients import fire_gradients_ready
from ..lifecycle.manager import CallbackManager
from ..numerics import Numerics


def show_gradients(
    manager: CallbackManager, state: LoopState, collect: Callable[[], Mapping[str, torch.Tensor]]
) -> None:
    """Fire `gradients_ready`, if a hook listens; settings of torch that it changes are restored."""
    if manager.wants("gradients_ready"):
        numerics = Numerics()
        fire_gradients_ready(manager, state, collect)
        numerics.restore("a callback")
