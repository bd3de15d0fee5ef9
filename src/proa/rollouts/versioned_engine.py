"""An engine that knows the version of its weights, used by one caller at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..data.versions import NO_VERSION
from ..engines.generating import generate
from ..numerics import Numerics

if TYPE_CHECKING:
    import torch

    from ..data.sampling import Completion
    from ..engines.protocol import Engine, Request
    from .progress import Progress


@dataclass(frozen=True, slots=True)
class Generated:
    """What came of one call, in the order of its requests, and the version of the weights that made all of it."""

    completions: list[Completion]
    version: int


class VersionedEngine:
    """Weights are switched between two calls of `generate`, never inside one, whoever brings them.

    Where code of a user runs between two calls, `guarded_from` says whose, e.g. `a callback of maker_0`: settings of
    torch that it changed are put back before the next call.
    """

    def __init__(self, engine: Engine, *, guarded_from: str | None = None) -> None:
        self.version = NO_VERSION
        """Of its weights, once some are loaded."""
        self.in_use = threading.RLock()
        self.engine = engine
        self._guarded_from = guarded_from
        self._numerics: Numerics | None = None

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Replace all weights, or none."""
        with self.in_use:
            self.engine.load(weights, version)
            self.version = version

    def generate(self, requests: Sequence[Request], progress: Progress) -> Generated:
        """A completion for each request, in order, with the weights that it has now."""
        with self.in_use, progress.generating():
            return Generated(self.decode(requests), self.version)

    def decode(self, requests: Sequence[Request]) -> list[Completion]:
        """The same for whoever has it in use already, in any thread."""
        if self._guarded_from is not None and self._numerics is not None:
            self._numerics.restore(self._guarded_from)
        stamped = [replace(request, version=max(0, self.version)) for request in requests]
        completions = generate(self.engine, stamped)
        if self._guarded_from is not None:
            self._numerics = Numerics()  # what was set before the first call, or by the engine itself, is meant
        return completions
