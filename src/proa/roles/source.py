"""Where a trainer's batches come from: the lease book of a run, or a buffer that makers push into."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..data.experience import BufferItem, Experience, split
from ..data.saved_items import items_from, items_tree
from .buffer import DetachedReplayBuffer
from .ledger import Ledger, tokens_in


class Source(Protocol):
    """What a trainer needs of wherever its batches come from; `LeaseBook` is one."""

    ledger: Ledger

    @property
    def ready(self) -> bool: ...
    @property
    def made(self) -> dict[str, float]:
        """What is known of how the last step's items were made, for the step's metrics."""

    def start_episode(self, episode: int) -> None: ...
    def take_step(self, owner: str) -> list[BufferItem]: ...
    def settle(self, items: Sequence[BufferItem], *, dropped: str | None = None) -> None: ...
    def interrupt(self) -> None:
        """Have `take_step` wait no longer, but raise `StepInterrupted`."""

    def state_dict(self) -> dict[str, Any]:
        """Between two steps, what a run that goes on needs to know."""

    def load_state_dict(self, saved: Mapping[str, Any]) -> None: ...
    def versions_in_use(self) -> set[int] | None:
        """The versions of weights that work still to be done may name; None if nobody knows."""

    def close(self, reason: str) -> None: ...


class PushedExperience:
    """What makers push directly: it counts as leased on arrival and is trained in order of arrival."""

    def __init__(self, buffer: DetachedReplayBuffer) -> None:
        self.buffer = buffer
        self.ledger = Ledger()
        self._sending = threading.Lock()

    def append(self, experience: Experience) -> None:
        self.extend(split(experience))

    def extend(self, items: Sequence[BufferItem]) -> None:
        with self._sending:  # one sender at a time: what comes together stays together
            with self.buffer.room:
                self.ledger.lease(len(items))
                self.ledger.deliver(len(items), tokens=tokens_in(items))
            self.buffer.extend(items)

    @property
    def ready(self) -> bool:
        return self.buffer.get_length() > 0

    @property
    def made(self) -> dict[str, float]:
        return {}

    def start_episode(self, episode: int) -> None:
        """Nothing is admitted here: makers send as they please, and the buffer's limit holds them back."""

    def take_step(self, owner: str) -> list[BufferItem]:
        return self.buffer.take(owner=owner)

    def settle(self, items: Sequence[BufferItem], *, dropped: str | None = None) -> None:
        with self.buffer.room:
            if dropped is None:
                self.ledger.train(len(items), tokens=tokens_in(items))
            else:
                self.ledger.drop(len(items), dropped, tokens=tokens_in(items))

    def interrupt(self) -> None:
        self.buffer.interrupt()

    def state_dict(self) -> dict[str, Any]:
        with self.buffer.room:
            return {"items": items_tree(self.buffer.items), "ledger": self.ledger.as_dict()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        with self.buffer.room:
            self.ledger.load(saved["ledger"])
        self.buffer.extend(items_from(saved["items"]))

    def versions_in_use(self) -> set[int] | None:
        return None  # makers that push switch weights when they like

    def close(self, reason: str) -> None:
        self.buffer.close(reason)
        with self.buffer.room:
            self.ledger.abandon("run_ended")
