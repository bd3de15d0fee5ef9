"""The makers that a trainer of the user's own was given by name, and pushes its weights to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from ..actors.finding import ActorLostError, by_reference, find_actor
from ..errors import ProaError
from .weights import Weights

log = logging.getLogger("proa.trainer")


class MakerHandle(Protocol):
    """A maker that a trainer pushes to; `weights` and `base` may be references, which are resolved on the way."""

    def update_experience_maker(self, weights: Any, base: Any = None) -> None: ...


class MakersLostError(ProaError):
    """No maker is left."""


class NamedMakers:
    """Pushes to all of them at once, and waits until each has the weights, with a deadline.

    They are found at the first push. A lost maker is left out from then on; when all are lost the push fails.
    """

    def __init__(
        self,
        names: Sequence[str],
        find: Callable[[str], MakerHandle] | None,
        report_lost: Callable[[str, str], None],
        *,
        patience: float,
    ) -> None:
        self._names = list(names)
        self._are_actors = find is None
        self._find = find or (lambda name: find_actor(name, patience=patience, call_seconds=patience))
        self._report_lost = report_lost
        self._handles: dict[str, MakerHandle] = {}

    def push(self, weights: Weights, base: Weights | None = None) -> None:
        """Have all makers switch to these weights; `base` is the base of an adapter, where that is new."""
        if not self._handles:
            self._handles = {name: self._find(name) for name in self._names}
        sent: tuple[Any, Any] = (weights, base)
        if self._are_actors:  # written once for all of them
            sent = (by_reference(weights), None if base is None else by_reference(base))
        with ThreadPoolExecutor(len(self._handles), "proa push") as pool:
            calls = {name: pool.submit(handle.update_experience_maker, *sent) for name, handle in self._handles.items()}
            for name, call in calls.items():
                try:
                    call.result()
                except ActorLostError as lost:
                    del self._handles[name]
                    log.warning("%s; training continues with %s", lost, ", ".join(self._handles) or "nobody")
                    self._report_lost(name, str(lost))
        if not self._handles:
            raise MakersLostError(f"all makers are gone: {', '.join(self._names)}")
