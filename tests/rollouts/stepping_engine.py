"""An engine without a model that adds a token to each of its requests at every step, and can be held between two."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.engines.made_up import MadeUpEngine

from proa.engines import Progress, Request
from proa.engines.protocol import EngineBusyError


class SteppingEngine(MadeUpEngine):
    """Holds two versions of weights. `before_step` is called with the requests that the step goes over."""

    def __init__(self, length: Callable[[Request], int] = lambda request: 3, slots: int = 100) -> None:
        super().__init__()
        self.slots = slots
        self.together: list[set[str]] = []
        self.threads: set[str] = set()
        self.before_step: Callable[[set[str]], None] = lambda names: None
        self.cancelled = threading.Event()
        self.cancelled_ids: list[str] = []
        self._length = length
        self._made: dict[str, int] = {}

    @property
    def free(self) -> int:
        return max(0, self.slots - len(self._open))

    def step(self) -> list[Progress]:
        names = {request.id for request in self._open}
        self.threads.add(threading.current_thread().name)
        self.before_step(names)
        self.together.append(names)
        return [self._one_more(request) for request in list(self._open)]

    def _one_more(self, request: Request) -> Progress:
        self._made[request.id] = made = self._made.get(request.id, 0) + 1
        is_last = made >= self._length(request)
        if is_last:
            self._open.remove(request)
            del self._made[request.id]
        return Progress(request.id, (request.version + 4,), (-0.5,), request.version, "length" if is_last else None)

    def cancel(self, request_id: str) -> None:
        super().cancel(request_id)
        self.cancelled_ids.append(request_id)
        self.cancelled.set()

    def load(self, weights, version: int) -> None:
        used = {request.version for request in self._open}
        if version in used or (version not in self.versions and len(used) == 2):
            raise EngineBusyError("two versions are in use")
        if version not in self.versions and len(self.versions) == 2:
            self.versions.remove(min(self.versions - used))
        self.versions.add(version)
