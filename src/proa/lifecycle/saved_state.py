"""The state of callbacks in a checkpoint: each under its own key, restored into the same object."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from ..errors import CallbackStateError
from ..spelling import did_you_mean
from .hooks import BaseCallback

log = logging.getLogger("proa.lifecycle")

FIRINGS = "firings counted by every="
"""The key of the counts of functions registered with `every=`."""


@runtime_checkable
class Stateful(Protocol):
    """A callback that is saved in every checkpoint."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, saved: Any, /) -> None: ...


def saved_key(callback: BaseCallback) -> str:
    """The name a callback's state is saved under: its `state_key`, or its class's name."""
    return callback.state_key or type(callback).__qualname__


def stateful(callbacks: Iterable[BaseCallback]) -> dict[str, Stateful]:
    """The callbacks that have state, by key."""
    return {saved_key(callback): callback for callback in callbacks if isinstance(callback, Stateful)}


def check_state(callback: BaseCallback, others: Iterable[BaseCallback]) -> None:
    """Raise if a callback's state could be confused with another's, or saved but not restored."""
    if hasattr(callback, "state_dict") != hasattr(callback, "load_state_dict"):
        raise CallbackStateError(f"{type(callback).__name__} needs both state_dict and load_state_dict, and has one")
    if isinstance(callback, Stateful) and saved_key(callback) in stateful(others):
        raise CallbackStateError(
            f"two callbacks would save their state as {saved_key(callback)!r}: give each its own state_key, "
            f"the same in every run"
        )


def save(callbacks: Iterable[BaseCallback]) -> dict[str, Any]:
    return {key: callback.state_dict() for key, callback in stateful(callbacks).items()}


def load(callbacks: Iterable[BaseCallback], saved: Mapping[str, Any]) -> None:
    """Restore state that has a callback; log state without a callback and callbacks without state."""
    present = stateful(callbacks)
    for key in saved.keys() - present.keys():
        log.warning("saved state of callback %r has no callback here%s", key, did_you_mean(key, present))
    for key in present.keys() - saved.keys():
        log.warning("callback %r has no saved state and starts from the beginning", key)
    for key, callback in present.items():
        if key in saved:
            try:
                callback.load_state_dict(saved[key])
            except Exception as error:
                error.add_note(f"while the saved state of callback {key!r} was loaded")
                raise
