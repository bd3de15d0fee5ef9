"""The weights that a maker samples with: which versions its engine has, and whether they are trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from ..actors.activity import Activity
from ..data.versions import NO_VERSION
from ..engines.own_stream import OwnStream
from ..policy.policy import Receiver
from ..rollouts import EngineStream, VersionedEngine
from .probe import Probe
from .weights import Weights


class Store(Protocol):
    """The weights by version as a maker sees them."""

    def fetch(self, version: int, *, owner: str) -> Weights: ...


class MakerWeights:
    """Loads versions of the weights into a maker's engine, all of one or nothing, after checking them.

    `distrust` raises a doubt, which only a load that begins later answers.
    """

    def __init__(self, engine: VersionedEngine, receiver: Receiver, activity: Activity, *, maker: str) -> None:
        self._versioned_engine = engine
        self._engine = engine.engine
        self._receiver = receiver
        self._activity = activity
        self._maker = maker
        self._own_stream = OwnStream(getattr(self._engine, "device", None))
        self._probe_gap: float | None = None  # the largest since `take_probe_gap`
        self._doubt = self._answered = object()
        self._trusted: dict[int, object] = {}
        """By version, the doubt that there was when its weights were loaded beside others."""
        self._digest = ""

    @property
    def version(self) -> int:
        """The version that the engine has; `NO_VERSION` if it has none, or if it is not trusted."""
        return self._versioned_engine.version if self._answered is self._doubt else NO_VERSION

    def distrust(self) -> None:
        """Trust no version that is loaded; may be called from any thread."""
        self._doubt = object()  # a new one each time: a load answers the doubt there was when it began, no later one

    def is_trusted(self, version: int, stream: EngineStream) -> bool:
        """Whether the stream has this version, and it was not doubted since."""
        return self._trusted.get(version) is self._doubt and stream.has(version)

    def load(self, version: int, store: Store) -> None:
        """Fetch a version and switch to it."""
        doubt = self._doubt
        with self._activity.doing("load", f"loading weights of version {version}"):
            weights = store.fetch(version, owner=self._maker)
        self.switch(weights)
        self._answered = doubt  # one that came after the fetch is still open

    def switch(self, weights: Weights, base: Weights | None = None) -> bool:
        """Switch to these weights; False if they are loaded already. Waits for the batch that is being generated.

        `base` is the base of an adapter.
        """
        if base is None and weights.digest == self._digest and weights.version == self.version:
            return False
        doubt = self._doubt
        with (
            self._versioned_engine.in_use,
            self._activity.doing("load", f"loading weights of version {weights.version}"),
        ):
            weights.check()
            if base is not None:
                base.check()
                self._receiver.use_base({name: tensor.clone() for name, tensor in base.tensors.items()})
            self._versioned_engine.load(self._whole(weights), weights.version)
            if weights.probe is not None:
                self._compare(weights.probe, self._engine.score(weights.probe.sequences), weights.version)
        self._digest = weights.digest
        self._answered = doubt
        return True

    def load_beside(self, version: int, store: Store, stream: EngineStream, activity: Activity) -> None:
        """Fetch a version and give it to the engine's stream; called by the threads of leases, one at a time."""
        doubt = self._doubt
        with activity.doing("load", f"loading weights of version {version}"):
            weights = store.fetch(version, owner=self._maker)
            with self._own_stream():  # the trainer's next step is under way
                weights.check()
                whole = self._whole(weights)
            activity.count({"switch": stream.load(whole, version)})
            if weights.probe is not None:
                self._compare(weights.probe, stream.score(weights.probe.sequences, version), version)
        self._versioned_engine.version = version
        self._digest = weights.digest
        self._trusted = {known: before for known, before in self._trusted.items() if stream.has(known)}
        self._answered = self._trusted[version] = doubt

    def take_probe_gap(self) -> float | None:
        """The largest gap between engine and trainer since the last call; None if nothing was compared."""
        gap, self._probe_gap = self._probe_gap, None
        return gap

    def _whole(self, weights: Weights) -> Mapping[str, torch.Tensor]:
        """What the engine loads: an adapter is merged here, beside the engine, unless it applies adapters itself."""
        whole = self._receiver.whole(weights.tensors)
        return whole if getattr(self._engine, "applies_adapters", False) else dict(whole)

    def _compare(self, probe: Probe, scored: list[torch.Tensor] | None, version: int) -> None:
        """Raise unless the engine computes with these weights what the trainer does."""
        if scored is not None:
            gap = probe.check(scored, version, getattr(self._engine, "dtype", None))
            self._probe_gap = max(gap, self._probe_gap or 0.0)
