"""A maker's leases, several under way at once, so that its engine is never without work.

Four kinds of threads take part. One takes leases, up to the maker's fair share and the room in the engine. Each lease
has one, which loads the weights and has its samples generated and scored. One steps the engine. And the thread that
iterates over the stream gets the finished leases and hands them in, at its own pace.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from ..actors.activity import Activity
from ..actors.waiting import ClosedError, WaitTimeoutError
from ..rollouts import EngineStream, Progress, Rollout, Sample, StreamUser

if TYPE_CHECKING:
    from ..data.lease import Delivery, Lease, Span

ASK_SECONDS = 0.05
"""How often the book is asked for one more lease, while there is room for one."""
PROGRESS_SECONDS = 1.0
"""How often progress on leases is reported to the book."""


class Book(Protocol):
    """The lease book as a maker sees it, here or on another machine."""

    def next_lease(self, maker: str) -> Lease: ...
    def another_lease(self, maker: str) -> Lease | None: ...
    def deliver(self, delivery: Delivery, maker: str) -> bool: ...
    def note_made(self, lease_ids: Sequence[int], maker: str) -> None: ...
    def note_handing_in(self, lease_id: int, maker: str) -> None: ...
    def note_progress(self, lease_ids: Sequence[int], maker: str) -> None: ...
    def release(self, lease_id: int, maker: str) -> None: ...


@dataclass(frozen=True)
class Loaded:
    """The engine has loaded this version of the weights."""

    version: int


@dataclass(eq=False)
class Made:
    """A finished lease: its samples, or the error that was raised."""

    lease: Lease
    user: StreamUser
    waited: float
    """Seconds without any work, before this lease came."""
    activity: Activity = field(default_factory=Activity)
    samples: list[Sample] = field(default_factory=list)
    error: BaseException | None = None

    def take(self) -> list[Sample]:
        if self.error is not None:
            raise self.error
        return self.samples

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent on it, by kind; of the engine's time its share."""
        spent = {**self.activity.look().spent, "wait": self.waited}
        if "generate" in spent:
            spent["generate"] = self.user.engine_seconds
        return {kind: seconds for kind, seconds in spent.items() if seconds > 0}

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.activity.take_spans()


class LeaseStream:
    """Yields leases as they are finished, the earliest first, as the trainer needs it first, and the versions of the
    weights that were loaded for them.

    `load` fetches a version of the weights and gives it to the stream; `is_trusted` says whether the engine has it and
    need not load it again.
    """

    def __init__(
        self,
        book: Book,
        stream: EngineStream,
        rollout: Rollout,
        *,
        maker: str,
        load: Callable[[int, Activity], None],
        is_trusted: Callable[[int], bool],
        doing: Callable[[str], None],
    ) -> None:
        self._book = book
        self._stream = stream
        self._rollout = rollout
        self._maker = maker
        self._load = load
        self._is_trusted = is_trusted
        self._doing = doing
        self._loading, self._scoring = threading.Lock(), threading.Lock()
        self._open: dict[int, Made] = {}
        self._making: set[int] = set()
        self._most_making = 1
        self._made: dict[int, Made] = {}
        """Finished, not handed in yet."""
        self._reported_made: set[int] = set()
        """Of these, those that were reported to the book."""
        self._is_delivering = False
        """Whether a delivery is under way, which the book may hold back."""
        self._changed = threading.Condition()
        self._loaded: deque[Loaded] = deque()
        self._error: BaseException | None = None
        """Why no more leases come."""
        self._is_over = False
        self._taker = threading.Thread(target=self._take_leases, name=f"{maker} leases", daemon=True)

    def __enter__(self) -> LeaseStream:
        self._taker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop making; leases that were not handed in go to other makers, if the run continues."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._stream.close("the maker has ended")
        with self._changed:
            self._changed.wait_for(lambda: not self._making)
        if kind is not ClosedError:
            for lease_id in list(self._open):
                self._book.release(lease_id, self._maker)

    def __iter__(self) -> LeaseStream:
        return self

    def __next__(self) -> Made | Loaded:
        with self._changed:
            self._changed.wait_for(lambda: self._loaded or self._made or self._error is not None)
            if self._loaded:
                return self._loaded.popleft()
            if self._made:
                lease_id = min(self._made)
                if lease_id in self._reported_made:
                    self._reported_made.discard(lease_id)
                    self._book.note_handing_in(lease_id, self._maker)
                return self._made.pop(lease_id)
            assert self._error is not None
            raise self._error

    def deliver(self, delivery: Delivery, maker: str) -> bool:
        """Deliver a lease. Finished leases that wait behind it are reported to the book, so that they are not overdue,
        and this one is let in if the trainer waits for one of them."""
        with self._changed:
            self._is_delivering = True
            self._report_made(self._made.keys() - self._reported_made)
        try:
            return self._book.deliver(delivery, maker)
        finally:
            with self._changed:
                self._is_delivering = False

    def _report_made(self, lease_ids: set[int]) -> None:
        if lease_ids:
            self._reported_made |= lease_ids
            self._book.note_made(sorted(lease_ids), self._maker)

    def note_handed_in(self, made: Made) -> None:
        """The book has it; those waiting behind it count as moved on."""
        with self._changed:
            self._open.pop(made.lease.id, None)
            for lease_id in self._made.keys() & self._open.keys():
                self._open[lease_id].user.moved_at = monotonic()
            self._changed.notify_all()

    # -- taking --------------------------------------------------------------------------------------

    def _take_leases(self) -> None:
        try:
            reported_at = monotonic()
            while not self._is_over:
                taken = self._next_lease()
                if taken is not None:
                    self._begin(*taken)
                    continue
                with self._changed:
                    self._changed.wait(ASK_SECONDS)
                if monotonic() - reported_at > PROGRESS_SECONDS:
                    reported_at = self._report_progress(reported_at)
        except BaseException as error:  # also ClosedError, when the run is over
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next_lease(self) -> tuple[Lease, float] | None:
        """A lease, and how many seconds this maker was idle before it; None if it has no room or gets no more now.

        It waits for one only while no lease is open, and so no error needs handling.
        """
        if self._open:
            lease = self._book.another_lease(self._maker) if self._has_room else None
            return None if lease is None else (lease, 0.0)
        self._doing("waiting for a lease")
        begun = monotonic()
        while True:
            try:
                return self._book.next_lease(self._maker), monotonic() - begun
            except WaitTimeoutError:
                continue  # an idle maker is not a failure: the trainer's own wait is the one that counts

    @property
    def _has_room(self) -> bool:
        """Whether the engine has a row that no open lease will need, and finished leases do not pile up: no more may
        wait to be handed in than were ever made at once."""
        with self._changed:
            coming = [made.lease.samples for made in self._open.values() if not made.user.has_begun]
            has_piled_up = len(self._made) > self._most_making
        return not has_piled_up and self._stream.free > sum(coming)

    def _report_progress(self, since: float) -> float:
        with self._changed:
            moved = [made.lease.id for made in self._open.values() if made.user.moved_at > since]
        now = monotonic()
        if moved:
            self._book.note_progress(moved, self._maker)
        return now

    def _begin(self, lease: Lease, waited: float) -> None:
        user = StreamUser(self._stream, f"lease {lease.id}", lease.version, lambda: self._ensure_weights(made))
        made = Made(lease, user, waited)
        with self._changed:
            self._open[lease.id] = made
            self._making.add(lease.id)
            self._most_making = max(self._most_making, len(self._making))
        self._show_work()
        threading.Thread(target=self._make, args=(made,), name=f"{self._maker} lease {lease.id}", daemon=True).start()

    # -- making --------------------------------------------------------------------------------------

    def _make(self, made: Made) -> None:
        lease = made.lease
        try:
            self._ensure_weights(made)
            progress = Progress(f"lease {lease.id}", made.activity, self._scoring)
            made.samples = self._rollout.run(made.user, lease.prompts, lease.seeds, progress)
        except BaseException as error:
            made.error = error
        with self._changed:
            self._made[lease.id] = made
            self._making.discard(lease.id)
            self._changed.notify_all()
            if self._is_delivering and not self._is_over:
                with contextlib.suppress(ClosedError):  # the run is over, which the delivery finds too
                    self._report_made({lease.id})
        self._show_work()

    def _ensure_weights(self, made: Made) -> None:
        """Have the weights of its version loaded, once for all leases that name it."""
        version = made.lease.version
        if self._is_trusted(version):
            return
        with self._loading:
            if self._is_trusted(version):
                return
            self._load(version, made.activity)
            with self._changed:
                self._loaded.append(Loaded(version))
                self._changed.notify_all()

    def _show_work(self) -> None:
        """Show what the maker is doing in the live view."""
        with self._changed:
            making = sorted(self._making)
        named = ", ".join(map(str, making[:4])) + (" ..." if len(making) > 4 else "")
        self._doing(f"generating lease{'s' if len(making) > 1 else ''} {named}" if making else "handing in")
