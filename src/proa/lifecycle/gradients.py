"""Fires `gradients_ready`: gradients are collected only if a hook reads them, and must not be changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..data.gradients import Gradients
from ..data.state import LoopState
from ..errors import HookError
from .manager import CallbackManager


def fire_gradients_ready(manager: CallbackManager, state: LoopState, collect: Callable[[], Mapping[str, Any]]) -> None:
    """Fire the moment, between the last backward pass and the optimizer's step.

    `collect` returns the gradients by the names of their parameters, and is called only if a hook reads them.

    Raises `HookError` if a hook changed a gradient in place: the step would not be the one that its loss asks for.
    """
    if not manager.wants("gradients_ready", "gradients"):
        manager.moments.gradients_ready(state, None)
        return
    gradients = Gradients(collect())
    manager.moments.gradients_ready(state, gradients)
    if changed := gradients.changed():
        raise HookError(
            f"a hook of 'gradients_ready' changed the gradient of {changed[0]} in place: gradients are there to be "
            f"looked at; work on a copy (gradient.clone())"
        )
