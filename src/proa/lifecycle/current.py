"""The state of the trainer or maker whose hooks this thread runs, to which hooks without a `state` log.

All moments of one trainer, or of one maker, are fired by one thread. So the state is set once, for the whole of its
work, at no cost for each moment.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..data.state import TrainState

_thread = threading.local()


def current_state() -> TrainState | None:
    """The state of the trainer or maker that this thread runs; None in other threads."""
    state: TrainState | None = getattr(_thread, "state", None)
    return state


@contextlib.contextmanager
def logging_to(state: TrainState) -> Iterator[None]:
    """Inside, this is the state of the current thread; afterwards the previous one is restored."""
    before = current_state()
    _thread.state = state
    try:
        yield
    finally:
        _thread.state = before


Method = TypeVar("Method", bound=Callable[..., Any])


def with_own_state(method: Method) -> Method:
    """Have a method of an object with a `state` run its hooks with that state as the thread's."""

    @functools.wraps(method)
    def within(self: Any, *args: Any, **kwargs: Any) -> Any:
        with logging_to(self.state):
            return method(self, *args, **kwargs)

    return within  # type: ignore[return-value]
