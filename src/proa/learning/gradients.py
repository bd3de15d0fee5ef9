"""A step's gradients, shown to hooks before the optimizer follows them."""

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
    """Fire `gradients_ready`, if somebody listens; settings of torch that a hook changes are put back."""
    if manager.wants("gradients_ready"):
        numerics = Numerics()
        fire_gradients_ready(manager, state, collect)
        numerics.restore("a callback")
