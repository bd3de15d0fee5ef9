"""Finds trainers and makers by name, where they are Ray actors started by the user.

Ray is not imported for it: a process that can find an actor is part of a cluster, and has imported it.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from ..errors import ProaError, SettingError
from .waiting import WaitTimeoutError

log = logging.getLogger("proa.actors.finding")

CALL_SECONDS = 600.0
"""The deadline of a call: a full buffer holds a sender back at most this long."""
MENTION_SECONDS = 5.0
"""After this time a name without an actor is logged, as it may be misspelt."""
LOOK_SECONDS = 0.1
"""How often the name of an actor is looked up until it exists."""


class ActorLostError(ProaError):
    """An actor that was called is gone."""


class NamedActor:
    """An actor whose methods are called as if it were local: each call waits for its result, at most `seconds`."""

    def __init__(self, ray: Any, actor: Any, name: str, seconds: float = CALL_SECONDS) -> None:
        self._ray, self._actor, self._name, self._seconds = ray, actor, name, seconds

    def __getattr__(self, method: str) -> Any:
        remote = getattr(self._actor, method)

        def call(*arguments: Any, **named: Any) -> Any:
            errors = self._ray.exceptions
            try:
                return self._ray.get(remote.remote(*arguments, **named), timeout=self._seconds)
            except errors.GetTimeoutError:
                raise WaitTimeoutError(f"{self._name} has not answered {method} for {self._seconds:g} s") from None
            except errors.RayActorError as error:
                first = str(error).strip().partition("\n")[0]
                raise ActorLostError(f"the actor {self._name!r} is gone: {first}") from None

        return call


def find_actor(name: str, *, patience: float = 0.0, call_seconds: float = CALL_SECONDS) -> NamedActor:
    """The actor that was started with `.options(name=...)`; waits up to `patience` seconds until it exists."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        raise SettingError(
            f"{name!r} cannot be found by name outside of a Ray cluster: call ray.init(), or give find_trainer= to a "
            f"maker and find_maker= to a trainer"
        )
    begun = time.monotonic()
    is_mentioned = False
    while True:
        try:
            return NamedActor(ray, ray.get_actor(name), name, call_seconds)
        except ValueError:
            if time.monotonic() - begun >= patience:
                raise SettingError(
                    f"there is no actor {name!r} in this namespace: start it with .options(name={name!r})"
                ) from None
        if not is_mentioned and time.monotonic() - begun > MENTION_SECONDS:
            is_mentioned = True
            log.warning("waiting up to %g s for an actor named %r, which is not started yet", patience, name)
        time.sleep(LOOK_SECONDS)


def own_name() -> str | None:
    """The name of the actor that this process is; None if it is no actor or has no name."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    name: str | None = ray.get_runtime_context().get_actor_name()
    return name or None


def by_reference(value: Any) -> Any:
    """A reference to the value in Ray's object store, to be an argument of any number of calls."""
    return sys.modules["ray"].put(value)
