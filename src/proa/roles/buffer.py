"""The replay buffer: items in order of arrival, whole batches out, and a limit that holds senders back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..actors.waiting import ClosedError, StepInterrupted, WaitingRoom
from ..data.experience import BufferItem, Experience, merge, split
from ..data.trajectories import split_samples


class DetachedReplayBuffer:
    """Holds what makers sent until the trainer takes it, in batches of exactly `sample_batch_size` samples: items,
    or the rows of a trajectory.

    A remainder waits for more. `limit` counts batches; 0 is unlimited. A full buffer holds the sender back:
    it never drops anything and never takes more.
    """

    def __init__(self, sample_batch_size: int, limit: int = 0, *, wait_timeout: float = 600.0) -> None:
        if sample_batch_size < 1 or limit < 0:
            raise ValueError(f"sample_batch_size={sample_batch_size}, limit={limit}: at least 1, and 0 or more")
        self.sample_batch_size = sample_batch_size
        self.limit = limit
        self.wait_timeout = wait_timeout
        self.room = WaitingRoom()
        self._samples: deque[tuple[BufferItem, ...]] = deque()
        self._closed = ""
        self._interrupted = False
        self._training_is_over = False

    def append(self, experience: Experience, *, owner: str = "a maker") -> None:
        """Add the rows of a batch."""
        self.extend(split(experience), owner=owner)

    def extend(self, items: Sequence[BufferItem], *, owner: str = "a maker") -> None:
        """Add items, waiting for room for each: a long list goes in as the trainer takes from the buffer."""
        most = self.limit * self.sample_batch_size
        for rows in split_samples(items):
            with self.room as room:
                room.wait_until(
                    lambda: self._closed != "" or self._training_is_over or not self.limit or len(self._samples) < most,
                    owner=owner,
                    reason="room in the replay buffer",
                    timeout=self.wait_timeout,
                )
                self._check_open()
                if self.limit and len(self._samples) >= most:
                    raise ClosedError("training is over, and the buffer is full: nobody takes what is sent")
                self._samples.append(rows)
                room.announce()

    def sample(self, *, owner: str = "the trainer") -> Experience:
        """The next batch, in order of arrival; waits until it is whole."""
        return merge(self.take(owner=owner))

    def take(self, *, owner: str = "the trainer") -> list[BufferItem]:
        """Like `sample`, but as items."""
        with self.room as room:
            room.wait_until(
                lambda: self._closed != "" or self._interrupted or self.get_length() > 0,
                owner=owner,
                reason=f"a batch of {self.sample_batch_size} in the replay buffer",
                timeout=self.wait_timeout,
            )
            if self.get_length() == 0:
                self._check_open()
                raise StepInterrupted("the trainer was interrupted while it waited for experience")
            taken = [item for _ in range(self.sample_batch_size) for item in self._samples.popleft()]
            room.announce()
            return taken

    def get_length(self) -> int:
        """Whole batches."""
        return len(self._samples) // self.sample_batch_size

    def clear(self) -> int:
        """Drop everything; returns how many samples there were."""
        with self.room as room:
            count = len(self._samples)
            self._samples.clear()
            room.announce()
            return count

    @property
    def items(self) -> list[BufferItem]:
        """The items, in order of arrival."""
        with self.room:
            return [item for rows in self._samples for item in rows]

    def interrupt(self) -> None:
        """End the trainer's wait for a batch: `take` raises `StepInterrupted`."""
        with self.room as room:
            self._interrupted = True
            room.announce()

    def note_training(self, *, is_over: bool) -> None:
        """Record that training began or is over; when it is over, no sender waits for room."""
        with self.room as room:
            self._training_is_over = is_over
            room.announce()

    def close(self, reason: str) -> None:
        """Nothing more comes: every wait ends with `ClosedError` and the reason."""
        with self.room as room:
            self._closed = reason
            room.announce()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(self._closed)
