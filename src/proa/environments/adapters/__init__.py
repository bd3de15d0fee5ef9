"""Environments of other libraries, recognised by their methods: nothing of theirs is imported.

| what | recognised by |
| --- | --- |
| OpenEnv's clients | `_step_payload` and `_parse_result` |
| SkyRL-Gym's `BaseTextEnv` | `init` and `step`, without `reset` |
| TextArena's games | `reset`, `get_observation` and `step` |
| an environment of Proa | `reset(row, *, seed)` and `step(message)` |
| TRL's `environment_factory` | `reset(**row)` and methods as tools, without `step`, or with `get_reward` |
| gymnasium's text environments | `reset(seed=...)` and `step(text)` |
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import SettingError
from ...spelling import did_you_mean
from ..methods import MethodTools
from .adapter import Adapter, takes
from .gymnasium import GymnasiumEnvironment
from .openenv import OpenEnvEnvironment
from .skyrl import SkyRLEnvironment
from .textarena import TextArenaEnvironment

__all__ = [
    "GymnasiumEnvironment",
    "OpenEnvEnvironment",
    "SkyRLEnvironment",
    "TextArenaEnvironment",
    "adapted",
    "adapter_of",
]

_OTHERS: tuple[type[Adapter], ...] = (OpenEnvEnvironment, SkyRLEnvironment, TextArenaEnvironment)
_FORM = (
    "an environment has reset(row, *, seed), which returns how it begins, and step(message), which answers the model"
)


def adapted(
    make: Callable[..., Any], params: Mapping[str, Any], schemas: Sequence[Mapping[str, Any]] | None = None
) -> Any:
    """An environment made from a class or factory, in an adapter if it is another library's."""
    if isinstance(make, type):
        kind = make
    else:
        instance = make(**params)
        make, params, kind = (lambda: instance), {}, type(instance)
    adapter = adapter_of(kind)
    if adapter is None:
        return make(**params)
    if adapter is MethodTools:
        return MethodTools(make(**params), schemas)
    assert issubclass(adapter, Adapter)
    own = {name: value for name, value in params.items() if name in adapter.parameters}
    rest = {name: value for name, value in params.items() if name not in own}
    return adapter(functools.partial(make, **rest), **own)


def adapter_of(kind: type) -> type[Adapter] | type[MethodTools] | None:
    """What adapts a class; None if it is an environment as it is. Raises SettingError if it is nothing of the kind."""
    for other in _OTHERS:
        if other.fits(kind):
            return other
    if not callable(getattr(kind, "reset", None)):
        near = did_you_mean("reset", [name for name in dir(kind) if not name.startswith("_")])
        raise SettingError(f"{kind.__name__} is not an environment: it has no method 'reset'{near}; {_FORM}")
    has_step = callable(getattr(kind, "step", None))
    if has_step and takes(kind, "reset", {}, seed=0):
        _check(kind, "step", "self, message", {})
        if hasattr(kind, "close"):
            _check(kind, "close", "self")
        return None
    if not has_step or hasattr(kind, "get_reward"):
        MethodTools.check(kind)
        return MethodTools
    if not GymnasiumEnvironment.fits(kind):
        _check(kind, "reset", "self, row, *, seed", {}, seed=0)
    return GymnasiumEnvironment


def _check(kind: type, method: str, wanted: str, *given: Any, **named: Any) -> None:
    if not takes(kind, method, *given, **named):
        signature = str(inspect.signature(getattr(kind, method))).partition(" ->")[0]
        raise SettingError(f"{kind.__name__}.{method} takes {signature}: write {method}({wanted}); {_FORM}")
