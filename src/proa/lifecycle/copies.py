"""The state of a callback's copies in other processes, sent back to the instance that they were copied from."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .hooks import BaseCallback

log = logging.getLogger("proa.lifecycle")


@dataclass(frozen=True, slots=True)
class PackedState:
    """The attributes of a copy, pickled. The class is not sent: whoever has the instance has it."""

    content: bytes
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Attributes that cannot be pickled, each with the reason."""

    @classmethod
    def of(cls, callback: BaseCallback, dumps: Callable[[Any], bytes] = pickle.dumps) -> PackedState:
        """The state as it is now; no hook may run meanwhile. A class's own `__getstate__` decides what it is."""
        attributes = _attributes(object.__getstate__(callback))
        try:
            return cls(dumps(callback.__getstate__() if _has_own_state(callback) else attributes))
        except Exception:  # pickling runs user code, which may raise anything
            kept, left_out = dict[str, Any](), dict[str, str]()
            for name, value in attributes.items():
                try:
                    dumps({**kept, name: value})
                    kept[name] = value
                except Exception as error:
                    left_out[name] = f"{type(error).__name__}: {error}"
            return cls(dumps(kept), left_out)

    def restore(self, callback: BaseCallback) -> None:
        """Give an instance this state. Attributes that were left out stay as they are."""
        state = pickle.loads(self.content)  # noqa: S301 - from an actor of this run
        if hasattr(callback, "__setstate__") and not self.left_out:
            callback.__setstate__(state)
            return
        attributes = _attributes(state)
        for name in vars(callback).keys() - attributes.keys() - self.left_out.keys():
            del vars(callback)[name]
        for name, value in attributes.items():
            object.__setattr__(callback, name, value)  # of a frozen dataclass too


def return_states(callback: BaseCallback, states: Mapping[str, PackedState], own: str = "") -> None:
    """Fill `callback.actor_copies` with the copies by their actor. That of the actor `own` is the instance itself."""
    copies: dict[str, BaseCallback] = {}
    mentioned: set[str] = set()
    for actor, packed in states.items():
        into = callback if actor == own else object.__new__(type(callback))
        name = type(callback).__name__
        try:
            packed.restore(into)
        except Exception as error:
            log.warning("the state of %s in %s cannot be read here: %s: %s", name, actor, type(error).__name__, error)
            continue
        copies[actor] = into
        for attribute in packed.left_out.keys() - mentioned:
            mentioned.add(attribute)
            reason = packed.left_out[attribute]
            log.warning("%s: its attribute %r in %s cannot be sent to the driver (%s)", name, attribute, actor, reason)
    vars(callback)["actor_copies"] = copies


def _has_own_state(callback: BaseCallback) -> bool:
    return type(callback).__getstate__ is not object.__getstate__


def _attributes(state: Any) -> dict[str, Any]:
    """The attributes in a state as Python takes it: of the instance's dict, and in slots."""
    parts = state if isinstance(state, tuple) else (state,)
    return {name: value for part in parts if part for name, value in part.items()}
