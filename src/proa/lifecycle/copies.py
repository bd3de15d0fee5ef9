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
    """The attributes of a copy, pickled, without its class, which the receiver has."""

    content: bytes
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Attributes that cannot be pickled, each with the reason."""

    @classmethod
    def of(cls, callback: BaseCallback, dumps: Callable[[Any], bytes] = pickle.dumps) -> PackedState:
        """The present state, by the class's own `__getstate__` if it has one; no hook may run meanwhile."""
        attributes = _attributes(object.__getstate__(callback))
        has_getstate = type(callback).__getstate__ is not object.__getstate__
        try:
            return cls(dumps(callback.__getstate__() if has_getstate else attributes))
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
    """Fill `callback.actor_copies` with a copy for each actor. The state of the actor `own` goes into the instance."""
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


def _attributes(state: Any) -> dict[str, Any]:
    """The attributes in a pickle state: of the instance's dict, and of slots."""
    parts = state if isinstance(state, tuple) else (state,)
    return {name: value for part in parts if part for name, value in part.items()}
