"""An engine without a model: what its requests come to is made up, all of it in one step."""

from __future__ import annotations

from proa.data.sampling import FinishReason
from proa.engines import Progress, Request


class MadeUpEngine:
    """Subclasses say what a request comes to."""

    context_length = 1024
    free = 1024
    is_independent = True

    def __init__(self) -> None:
        self._open: list[Request] = []
        self.versions = {0}

    def tokens(self, request: Request) -> tuple[tuple[int, ...], FinishReason]:
        raise NotImplementedError

    def submit(self, request: Request) -> None:
        self._open.append(request)

    def step(self) -> list[Progress]:
        requests, self._open = self._open, []
        return [self._progress(request) for request in requests]

    def _progress(self, request: Request) -> Progress:
        tokens, reason = self.tokens(request)
        return Progress(request.id, tokens, (-0.5,) * len(tokens), request.version, reason)

    def cancel(self, request_id: str) -> None:
        self._open = [request for request in self._open if request.id != request_id]

    def score(self, sequences):
        raise NotImplementedError

    def load(self, weights, version: int) -> None:
        self.versions.add(version)

    def sleep(self) -> None:
        pass
