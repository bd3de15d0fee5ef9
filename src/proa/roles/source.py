"""Where a trainer's batches come from: the lease book of a run, or a buffer that makers push into."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..actors.waiting import StepInterrupted
from ..data.experience import BufferItem, Experience, split
from ..data.packed_items import PackedItems, pack_items, unpack_items
from ..data.saved_items import items_from, items_tree
from ..data.trajectories import count_samples
from ..errors import SettingError
from ..learning.replicas import Replicas
from ..leases.ledger import Ledger, tokens_in
from ..leases.plan import GroupFilter, group_by_id, keep_everything
from .buffer import DetachedReplayBuffer


class Source(Protocol):
    """Where a trainer's batches come from; `LeaseBook` is one."""

    ledger: Ledger

    @property
    def ready(self) -> bool: ...
    @property
    def made(self) -> dict[str, float]:
        """Metrics of how the last step's items were made."""

    @property
    def logged(self) -> dict[str, float]:
        """Metrics that hooks of makers logged when they made them."""

    def start_episode(self, episode: int) -> None: ...
    def take_step(self, owner: str) -> list[BufferItem]: ...
    def settle(self, items: Sequence[BufferItem], *, dropped: str | None = None) -> None: ...
    def interrupt(self) -> None:
        """Stop waiting: `take_step` raises `StepInterrupted`."""

    def state_dict(self) -> dict[str, Any]:
        """Between two steps, what a resumed run needs."""

    def load_state_dict(self, saved: Mapping[str, Any]) -> None: ...
    def versions_in_use(self) -> set[int] | None:
        """The versions of weights that open work may name; None if that is unknown."""

    def close(self, reason: str) -> None: ...


class PushedExperience:
    """Experience that makers push: it counts as leased on arrival and is trained in order of arrival.

    A batch is what arrived, `sample_batch_size` samples of it, less what `filter_group` leaves out. Groups that bring
    their advantages are complete, and not filtered.
    """

    def __init__(self, buffer: DetachedReplayBuffer, filter_group: GroupFilter = keep_everything) -> None:
        self.buffer = buffer
        self.filter_group = filter_group
        self.ledger = Ledger()
        self._sending = threading.Lock()

    def append(self, experience: Experience) -> None:
        self.extend(split(experience))

    def extend(self, items: Sequence[BufferItem]) -> None:
        size = self.buffer.sample_batch_size
        for group in group_by_id(items):
            samples = count_samples(group)
            if samples > 1 and size % samples:
                raise SettingError(
                    f"a group of {samples} samples came, and train_batch_size={size} is not a multiple of that: a "
                    f"group must not be divided between two batches"
                )
        with self._sending:  # one sender at a time: what comes together stays together
            with self.buffer.room:
                self.ledger.lease(count_samples(items))
                self.ledger.deliver(count_samples(items), tokens=tokens_in(items))
            self.buffer.extend(items)

    @property
    def ready(self) -> bool:
        return self.buffer.get_length() > 0

    @property
    def made(self) -> dict[str, float]:
        return {}

    @property
    def logged(self) -> dict[str, float]:
        return {}

    def start_episode(self, episode: int) -> None:
        """Nothing is admitted here: makers send at any time, and the buffer's limit holds them back."""

    def take_step(self, owner: str) -> list[BufferItem]:
        kept: list[BufferItem] = []
        for group in group_by_id(self.buffer.take(owner=owner)):
            if all(item.advantages is not None for item in group):
                kept += group
                continue
            filtered = self.filter_group(group)
            kept += filtered.kept
            with self.buffer.room:
                for reason, items in filtered.dropped.items():
                    self.ledger.drop(count_samples(items), reason, tokens=tokens_in(items))
        return kept

    def settle(self, items: Sequence[BufferItem], *, dropped: str | None = None) -> None:
        with self.buffer.room:
            if dropped is None:
                self.ledger.train(count_samples(items), tokens=tokens_in(items))
            else:
                self.ledger.drop(count_samples(items), dropped, tokens=tokens_in(items))

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
        return None  # makers that push choose their weights themselves

    def close(self, reason: str) -> None:
        self.buffer.close(reason)
        with self.buffer.room:
            self.ledger.abandon("run_ended")


class GatheredExperience:
    """Experience pushed to each of several trainers, which train on all of it together.

    Each takes a batch of its own, and a step is on the batches of all: every rank gets the same items.
    """

    def __init__(self, replicas: Replicas, pushed: PushedExperience) -> None:
        self._replicas = replicas
        self._pushed = pushed
        self._own: list[BufferItem] = []
        self.ledger = pushed.ledger

    @property
    def ready(self) -> bool:
        return self._pushed.ready

    @property
    def made(self) -> dict[str, float]:
        return self._pushed.made

    @property
    def logged(self) -> dict[str, float]:
        return self._pushed.logged

    def start_episode(self, episode: int) -> None:
        self._pushed.start_episode(episode)

    def take_step(self, owner: str) -> list[BufferItem]:
        try:
            self._own = self._pushed.take_step(owner)
        except StepInterrupted:
            self._own = []
            self._replicas.collect(None)  # the others have theirs, and are interrupted with this one
            raise
        taken = self._replicas.collect(pack_items(self._own))
        if any(packed is None for packed in taken):
            raise StepInterrupted("interrupted")
        return [item for packed in taken for item in unpack_items(packed)]

    def settle(self, items: Sequence[BufferItem], *, dropped: str | None = None) -> None:
        self._pushed.settle(self._own, dropped=dropped)  # each rank has its own ledger

    def interrupt(self) -> None:
        self._pushed.interrupt()

    def state_dict(self) -> dict[str, Any]:
        return self._pushed.state_dict()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self._pushed.load_state_dict(saved)

    def versions_in_use(self) -> set[int] | None:
        return self._pushed.versions_in_use()

    def close(self, reason: str) -> None:
        self._pushed.close(reason)


class SharedSource:
    """Rank 0's source, shared by all trainers: rank 0 takes and settles, and all get the same items."""

    def __init__(self, replicas: Replicas, source: Source | None) -> None:
        self._replicas = replicas
        self._source = source
        self.ledger = source.ledger if source is not None else Ledger()

    @property
    def ready(self) -> bool:
        return self._source is not None and self._source.ready

    @property
    def made(self) -> dict[str, float]:
        return self._source.made if self._source is not None else {}

    @property
    def logged(self) -> dict[str, float]:
        return self._source.logged if self._source is not None else {}

    def start_episode(self, episode: int) -> None:
        if self._source is not None:
            self._source.start_episode(episode)

    def take_step(self, owner: str) -> list[BufferItem]:
        if self._source is None:
            nothing: PackedItems | None = None
            packed = self._replicas.from_first(nothing)
            if packed is None:
                raise StepInterrupted("interrupted")
            return list(unpack_items(packed))
        try:
            taken = self._source.take_step(owner)
        except StepInterrupted:
            self._replicas.from_first(None)  # the others wait for items, and are interrupted with this one
            raise
        self._replicas.from_first(pack_items(taken))
        return taken

    def settle(self, items: Sequence[BufferItem], *, dropped: str | None = None) -> None:
        if self._source is not None:
            self._source.settle(items, dropped=dropped)

    def interrupt(self) -> None:
        if self._source is not None:
            self._source.interrupt()

    def state_dict(self) -> dict[str, Any]:
        return self._source.state_dict() if self._source is not None else {}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        if self._source is not None:
            self._source.load_state_dict(saved)

    def versions_in_use(self) -> set[int] | None:
        return self._source.versions_in_use() if self._source is not None else None

    def close(self, reason: str) -> None:
        if self._source is not None:
            self._source.close(reason)
