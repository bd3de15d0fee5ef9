"""Trainers and makers by name, where they are actors of the user's own."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import SettingError

CALL_SECONDS = 600.0
"""A call is answered in this time: a full buffer holds a sender back, and no longer than that."""


class NamedActor:
    """An actor whose methods are called as if it were here: each call waits for its answer."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self._ray, self._actor, self._name = ray, actor, name

    def __getattr__(self, method: str) -> Any:
        remote = getattr(self._actor, method)
        return lambda *arguments: self._ray.get(remote.remote(*arguments), timeout=CALL_SECONDS)


def find_actor(name: str) -> NamedActor:
    """The actor that was started with `.options(name=...)`.

    Ray is not imported for it: a process that can find an actor is part of a cluster, and has it already.
    """
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        raise SettingError(
            f"{name!r} cannot be found by name outside of a Ray cluster: call ray.init(), or give find_trainer="
        )
    try:
        return NamedActor(ray, ray.get_actor(name), name)
    except ValueError:
        raise SettingError(
            f"there is no actor {name!r} in this namespace: start it with .options(name={name!r})"
        ) from None
