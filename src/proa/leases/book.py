"""The lease book: which work is handed out, with which weights, and in which order it is trained on.

Staleness is bounded by admission. Let L be the leases of one episode and c those consumed. When episode e
starts, leases up to c + (1 + max_staleness) * L are admitted, and the newly admitted carry version e. With
two leases an episode and max_staleness 1:

    episode 0 admits 0 1 2 3 with version 0 and trains on 0 1
    episode 1 admits     4 5 with version 1 and trains on 2 3 (version 0)
    episode 2 admits     6 7 with version 2 and trains on 4 5 (version 1)

Nothing here depends on who generates a lease or when it comes back, so neither do the weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..actors.waiting import ClosedError, LeaseFailedError, StepInterrupted, WaitingRoom
from ..data.experience import BufferItem
from ..data.lease import Delivery, Lease, Prompt
from ..data.saved_items import delivery_from, delivery_tree, items_from, items_tree
from ..data.trajectories import count_samples
from ..record.journal import JournalEntry
from ..record.spans import Span
from .answers import Answers
from .decisions import Decisions
from .ledger import Ledger, tokens_in
from .making import Making
from .open_leases import OpenLeases
from .plan import GroupFilter, LeasePlan, group_by_id, keep_everything


class LeaseBook:
    """Order, admission, sequencer and ledger of one run; every method may be called from any thread."""

    def __init__(
        self,
        plan: LeasePlan,
        prompt: Callable[[int], Prompt],
        *,
        filter_group: GroupFilter = keep_everything,
        wait_timeout: float = 600.0,
    ) -> None:
        self.plan = plan
        self.ledger = Ledger()
        self.made: dict[str, float] = {}
        """Metrics of how the leases that the last `take_step` consumed were made; empty if it consumed none."""
        self.logged: dict[str, float] = {}
        """Metrics that hooks of makers logged for these leases: means over those that have a value."""
        self.makers = 1
        """How many makers share the work."""
        self.room = WaitingRoom()
        self._prompt = prompt
        self._filter_group = filter_group
        self._wait_timeout = wait_timeout
        self._admitted = 0  # how many leases were admitted; their ids count from 0
        self._versions: dict[int, int] = {}  # by id, of leases that are not finished
        self._open = OpenLeases()  # admitted, not delivered
        self._arrived: dict[int, Delivery] = {}  # delivered, not consumed; in order of arrival
        self._consumed_ahead: set[int] = set()  # of those after `_next`
        self._stale_in_flight: set[int] = set()  # with a maker, and too stale to be trained on
        self._next = 0  # the lease that `in_order` consumes next: all before it are consumed
        self._groups: deque[tuple[int, tuple[BufferItem, ...]]] = deque()  # (version, filtered group), not in a batch
        self._dismissed: set[str] = set()
        self._refilled = 0  # leases that were admitted on top for the step being assembled
        self._making = Making()  # of the leases consumed for it
        self._in_training = (0, 0)  # samples and tokens of the step being computed
        self._decisions = Decisions()
        self._answers = Answers()
        self._spans: list[Span] = []
        self._episode = 0
        self._steps_taken = 0
        self._closed = ""
        self._interrupted = False

    # -- admission -----------------------------------------------------------------------------------

    def start_episode(self, episode: int) -> None:
        """Admit the leases of this episode, with its version."""
        plan = self.plan
        with self.room as room:
            if self._admitted and episode == self._episode:
                return  # the run was resumed in the middle of it
            self._episode = episode
            self._drop_stale()
            self._forget_versions()
            ahead = (1 + plan.max_staleness) * plan.update_steps * plan.leases_per_step
            needed = (plan.total_steps - self._steps_taken) * plan.leases_per_step
            self._admit(self._consumed + min(ahead, needed) - self._admitted)
            room.announce()

    def _drop_stale(self) -> None:
        """Drop leases and groups that are too stale for this episode.

        In order and without filtering, admission alone keeps the bound and there is nothing to drop. With filtering a
        step may need fewer leases than were admitted for it, because groups were left over from the one before;
        and in order of arrival, a late lease may come too late.
        """
        oldest = self._episode - self.plan.max_staleness
        for group in [group for version, group in self._groups if version < oldest]:
            self.ledger.drop(count_samples(group), "stale", tokens=tokens_in(group))
        self._groups = deque(entry for entry in self._groups if entry[0] >= oldest)
        for lease_id in range(self._next, self._admitted):
            if not self._is_consumed(lease_id) and self._versions[lease_id] < oldest:
                self._discard(lease_id)

    def _discard(self, lease_id: int) -> None:
        self._mark_consumed(lease_id)
        delivery = self._arrived.pop(lease_id, None)
        if delivery is not None:
            self.ledger.drop(count_samples(delivery.items), "stale", tokens=delivery.tokens)
        elif lease_id not in self._open.handed_out:
            self._open.close(lease_id)
        elif lease_id in self._open.unassigned:
            self._drop_undelivered(lease_id)
        else:
            self._stale_in_flight.add(lease_id)

    def _drop_undelivered(self, lease_id: int) -> None:
        """Stop waiting for a lease that is too stale to be trained on; a delivery is ignored."""
        self._stale_in_flight.discard(lease_id)
        self._open.close(lease_id)
        self.ledger.lose(self.plan.lease_prompts * self.plan.group_size, "stale")

    def _admit(self, count: int) -> None:
        for lease_id in range(self._admitted, self._admitted + max(0, count)):
            self._open.unassigned.add(lease_id)
            self._versions[lease_id] = self._episode
            self._admitted += 1

    def _forget_versions(self) -> None:
        """Forget the versions of finished leases, so that the book does not grow with the run."""
        self._versions = {
            lease_id: version
            for lease_id, version in self._versions.items()
            if lease_id in self._open.handed_out or not self._is_consumed(lease_id)
        }

    # -- makers --------------------------------------------------------------------------------------

    def next_lease(self, maker: str, *, seconds: float | None = None) -> Lease:
        """The next lease; waits until there is one. Raises `ClosedError` when there will be none."""
        with self.room as room:
            room.wait_until(
                lambda: bool(self._closed or self._open.unassigned or maker in self._dismissed),
                owner=maker,
                reason="the trainer to admit more leases",
                timeout=self._wait_timeout if seconds is None else seconds,
            )
            return self._hand_out(maker)

    def another_lease(self, maker: str) -> Lease | None:
        """One more lease for a maker that has some; None if there is none now, or it has its share."""
        with self.room:
            share = -(-len(self._open.ids) // max(self.makers, len({*self._open.holders, maker})))
            has_share = self._open.being_made_by(maker) >= share
            if not self._closed and maker not in self._dismissed and (has_share or not self._open.unassigned):
                return None
            return self._hand_out(maker)

    def _hand_out(self, maker: str) -> Lease:
        self._check_open()
        if maker in self._dismissed:
            raise ClosedError(f"{maker} was replaced")
        lease_id = min(self._open.unassigned)
        try:
            lease = self.plan.lease(lease_id, self._versions[lease_id], self._prompt)
        except Exception as error:  # a prompt that cannot be tokenised, say
            raise LeaseFailedError(f"lease {lease_id} cannot be handed out: {error}", lease_id) from error
        if lease.id not in self._open.handed_out:
            self.ledger.lease(lease.samples)
        self._open.hand_out(lease, maker)
        self.room.announce()
        return lease

    def deliver(self, delivery: Delivery, maker: str, *, seconds: float | None = None) -> bool:
        """Take in the samples of a lease. A repeated delivery changes nothing and returns False.

        Samples that do not match the lease raise `GarbageError` and change nothing. A delivery that finds no room in
        time may be tried again; its lease is not overdue meanwhile.
        """
        lease_id = delivery.lease_id
        with self.room as room:
            self._open.note_made([lease_id], maker)
            room.wait_until(
                lambda: bool(self._closed) or self._known(lease_id) or self._may_enter(lease_id, maker),
                owner=maker,
                reason="room in the replay buffer",
                timeout=self._wait_timeout if seconds is None else seconds,
            )
            self._check_open()
            is_stale = lease_id in self._stale_in_flight
            if self._known(lease_id) and not is_stale:
                self._answers.compare(delivery, maker)
                return False
            self._open.check(delivery)
            self._open.close(lease_id)
            self.ledger.deliver(count_samples(delivery.items), tokens=delivery.tokens)
            if is_stale:
                self._stale_in_flight.remove(lease_id)
                self.ledger.drop(count_samples(delivery.items), "stale", tokens=delivery.tokens)
                return False
            self._arrived[lease_id] = delivery
            self._answers.note(delivery, maker)
            room.announce()
            return True

    def note_made(self, lease_ids: Sequence[int], maker: str) -> None:
        """A maker has made these leases, and will deliver them after an earlier one that is held back."""
        with self.room as room:
            if self._open.note_made(lease_ids, maker):
                room.announce()

    def note_handing_in(self, lease_id: int, maker: str) -> None:
        """A maker is about to deliver a lease that it has made; from now on it can be overdue."""
        with self.room:
            self._open.note_handing_in(lease_id, maker)

    def note_progress(self, lease_ids: Sequence[int], maker: str) -> None:
        """These leases of a maker have moved on since the last report."""
        with self.room:
            self._open.note_progress(lease_ids, maker)

    def release(self, lease_id: int, maker: str) -> None:
        """A maker gives up a lease, which the next maker gets. A late delivery still counts."""
        with self.room as room:
            if lease_id in self._stale_in_flight:
                self._drop_undelivered(lease_id)
                return
            if self._open.give_up(lease_id, maker):
                room.announce()

    def dismiss(self, maker: str) -> list[int]:
        """A maker is lost: it gets no more leases, and those that it had, which are returned, go to others.

        A delivery of it still counts if it is the first.
        """
        with self.room as room:
            self._dismissed.add(maker)
            held = self._open.held_by(maker)
            for lease_id in held:
                self.release(lease_id, maker)
            room.announce()
            return held

    def held_by(self, maker: str) -> list[int]:
        """The leases that a maker has and has not delivered."""
        with self.room:
            return self._open.held_by(maker)

    def overdue(self, seconds: float) -> dict[int, str]:
        """Leases that have not moved on for `seconds`, each with its maker."""
        with self.room:
            return self._open.overdue(seconds)

    def _known(self, lease_id: int) -> bool:
        return lease_id in self._arrived or self._is_consumed(lease_id)

    def _is_consumed(self, lease_id: int) -> bool:
        return 0 <= lease_id < self._next or lease_id in self._consumed_ahead

    @property
    def _consumed(self) -> int:
        """How many leases are consumed."""
        return self._next + len(self._consumed_ahead)

    def _may_enter(self, lease_id: int, maker: str) -> bool:
        """Whether a delivery need not wait for room. The lease that the trainer waits for always may enter, and so may
        those that its maker delivers before it. If no maker has that lease, all may, as one of the makers held back
        here must make it."""
        limit = self.plan.buffer_limit * self.plan.leases_per_step
        if not limit or len(self._arrived) < limit:
            return True
        awaited = self._next if self._awaited is None else self._awaited
        has_what_is_awaited = self._open.is_made_by(awaited, maker)
        return lease_id == awaited or awaited in self._open.unassigned or has_what_is_awaited

    # -- the trainer ---------------------------------------------------------------------------------

    def take_step(self, owner: str = "the trainer") -> list[BufferItem]:
        """The items of the next step, in whole groups; fewer than a batch if filtering exhausted the refills.

        They count as buffered until `settle`. If interrupted, the step stays partly assembled, and a resumed run
        continues with it.
        """
        plan = self.plan
        with self.room as room:
            while (short := plan.prompts_per_step - len(self._groups)) > 0:
                if self._consumed == self._admitted:
                    refill_left = plan.max_refill * plan.leases_per_step - self._refilled
                    if not refill_left:
                        break
                    refill = min(refill_left, -(-short // plan.lease_prompts))
                    self._refilled += refill
                    self._admit(refill)
                    room.announce()
                self._consume(self._next_to_consume(owner))
                room.announce()  # the awaited lease has changed
            taken = min(plan.prompts_per_step, len(self._groups))
            groups = [self._groups.popleft()[1] for _ in range(taken)]
            items = [item for group in groups for item in group]
            self._steps_taken += 1
            self.made, self.logged = self._making.metrics(), self._making.logged()
            self._refilled, self._making = 0, Making()
            self._in_training = (count_samples(items), tokens_in(items))
            return items

    def settle(self, items: Sequence[BufferItem], *, dropped: str | None = None) -> None:
        """Count these items as trained, or as dropped for the given reason."""
        with self.room as room:
            self._in_training = (0, 0)
            if dropped is None:
                self.ledger.train(count_samples(items), tokens=tokens_in(items))
            else:
                self.ledger.drop(count_samples(items), dropped, tokens=tokens_in(items))
            room.announce()

    @property
    def ready(self) -> bool:
        """Whether `take_step` would return without waiting for a maker, unless filtering leaves it short."""
        with self.room:
            short = self.plan.prompts_per_step - len(self._groups)
            leases = -(-short // self.plan.lease_prompts)
            if self.plan.schedule == "windowed":
                return len(self._arrived) >= leases
            return all(lease_id in self._arrived for lease_id in range(self._next, self._next + leases))

    def _next_to_consume(self, owner: str) -> int:
        """Wait for, and choose, the next lease: the next in order, or the first that arrived."""

        def can_continue() -> bool:
            awaited = self._awaited
            has_arrived = bool(self._arrived) if awaited is None else awaited in self._arrived
            return bool(self._closed) or self._interrupted or has_arrived

        def reason() -> str:
            awaited = self._awaited
            return "any lease" if awaited is None else f"lease {awaited}{self._open.whereabouts(awaited)}"

        self.room.wait_until(can_continue, owner=owner, reason=reason, timeout=self._wait_timeout)
        self._check_open()
        if self._interrupted:
            raise StepInterrupted("the trainer was interrupted while it waited for experience")
        if self.plan.schedule != "windowed":
            return self._next
        return self._decisions.first_of(self._arrived, self._steps_taken)

    @property
    def _awaited(self) -> int | None:
        """The one lease that the trainer waits for; None if any will do."""
        return self._decisions.awaited if self.plan.schedule == "windowed" else self._next

    def _consume(self, lease_id: int) -> None:
        delivery = self._arrived.pop(lease_id)
        self._making.add(delivery)
        self._mark_consumed(lease_id)
        self._spans += [
            {"actor": delivery.made_by, "kind": kind, "start": start, "seconds": seconds, "lease": lease_id,
             "version": self._versions[lease_id]}
            for kind, start, seconds in delivery.spans
        ]  # fmt: skip
        for delivered in group_by_id(delivery.items):
            group = self._decisions.as_scored(delivered)
            self._making.add_group(group)
            filtered = self._filter_group(group)
            for reason, items in filtered.dropped.items():
                self.ledger.drop(count_samples(items), reason, tokens=tokens_in(items))
            if filtered.kept:
                self._groups.append((self._versions[lease_id], filtered.kept))

    def _mark_consumed(self, lease_id: int) -> None:
        self._consumed_ahead.add(lease_id)
        while self._next in self._consumed_ahead:
            self._consumed_ahead.remove(self._next)
            self._next += 1

    # -- for the record ------------------------------------------------------------------------------

    def take_journal(self) -> list[JournalEntry]:
        """The decisions since the last call: which lease came first, which sample's reward failed."""
        with self.room:
            return self._decisions.take()

    def take_spans(self) -> list[Span]:
        """The spans of makers' work on the leases consumed since the last call."""
        with self.room:
            taken, self._spans = self._spans, []
            return taken

    def repeat(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Repeat the decisions of another run of the same plan, as far as its journal goes."""
        with self.room as room:
            self._decisions.repeat(entries)
            room.announce()

    # -- saving --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Between two steps, everything that the seed does not determine: the admitted leases with their versions,
        deliveries, open leases, the ledger, and a partly assembled step."""
        with self.room:
            self._forget_versions()
            return {
                "episode": self._episode,
                "steps_taken": self._steps_taken,
                "admitted": self._admitted,
                "version_ids": torch.tensor(list(self._versions), dtype=torch.int64),
                "versions": torch.tensor(list(self._versions.values()), dtype=torch.int64),
                "next": self._next,
                "consumed_ahead": sorted(self._consumed_ahead),
                "handed_out": sorted(self._open.handed_out),
                "in_vain": sorted(self._stale_in_flight),
                "arrived": [delivery_tree(delivery) for delivery in self._arrived.values()],
                "groups": [{"version": version, "items": items_tree(group)} for version, group in self._groups],
                "ledger": self.ledger.as_dict(),
                "refilled": self._refilled,
                "making": self._making.state_dict(),
                "journal": self._decisions.pending(),
                "spans": list(self._spans),
            }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a saved state. Leases that makers had are unassigned, and handed out again."""
        with self.room as room:
            self._episode, self._steps_taken, self._next = saved["episode"], saved["steps_taken"], saved["next"]
            versions = saved["versions"].tolist()
            self._admitted = saved.get("admitted", len(versions))  # version 0.1 saved the versions of all leases
            ids = saved["version_ids"].tolist() if "version_ids" in saved else range(len(versions))
            self._versions = dict(zip(ids, versions, strict=True))
            self._consumed_ahead = set(saved["consumed_ahead"])
            self._arrived = {one["lease_id"]: delivery_from(one) for one in saved["arrived"]}
            self._groups = deque((one["version"], items_from(one["items"])) for one in saved["groups"])
            self.ledger.load(saved["ledger"])
            if "making" in saved:  # version 0.1 did not keep what it had of a step
                self._refilled, self._making = saved["refilled"], Making.from_saved(saved["making"])
                self._decisions.continue_from(saved["journal"])
                self._spans = list(saved["spans"])
            self._open = OpenLeases()
            for lease_id in saved["handed_out"]:
                self._open.hand_out(self.plan.lease(lease_id, self._versions[lease_id], self._prompt), "nobody")
            for lease_id in saved["in_vain"]:
                self._drop_undelivered(lease_id)
            not_consumed = set(range(self._next, self._admitted)) - self._consumed_ahead
            self._open.unassigned = not_consumed - self._arrived.keys()
            room.announce()

    # -- looking and ending --------------------------------------------------------------------------

    def versions_in_use(self) -> set[int]:
        """The versions that open leases name, and the episode's, which new leases will name."""
        with self.room:
            return {self._episode, *(self._versions[lease_id] for lease_id in self._open.ids)}

    def interrupt(self) -> None:
        """End the trainer's wait: `take_step` raises `StepInterrupted` instead of waiting."""
        with self.room as room:
            self._interrupted = True
            room.announce()

    def close(self, reason: str, *, step_continues: bool = False) -> None:
        """The run is over: every wait ends with `ClosedError`, and everything left is dropped.

        With `step_continues`, the items of the current step are left for the trainer to settle.
        """
        with self.room as room:
            self._closed = self._closed or reason
            samples, tokens = self._in_training if step_continues else (0, 0)
            self.ledger.abandon("run_ended", but=samples, but_tokens=tokens)
            room.announce()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(self._closed)
