"""The lease book: order, admission, staleness, refill, backpressure, and a ledger that always closes."""

import threading
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.leases.honest_makers import fulfil, plan, prompt

from proa.actors.waiting import ClosedError, WaitTimeoutError
from proa.data.lease import Delivery
from proa.leases.book import LeaseBook
from proa.leases.plan import FilteredGroup, group_by_id


def train(book, *, before_take=lambda: None, episodes=None):
    """The trainer's side of a run; returns the steps' items with the version each step trains from."""
    steps = []
    the = book.plan
    for episode in range(-(-the.total_steps // the.update_steps)):
        book.start_episode(episode)
        for _ in range(min(the.update_steps, the.total_steps - len(steps))):
            before_take()
            items = book.take_step()
            book.settle(items)
            assert book.ledger.closes
            steps.append((episode, items))
    book.close("done")
    return steps


def uids(steps):
    return [[item.uid for item in items] for _, items in steps]


class ScriptedMakers:
    """Makers driven by a list of numbers: they take leases, deliver late, twice, in any order, or lose them."""

    def __init__(self, book, script):
        self.book = book
        self.script = iter(script)
        self.held = []

    def choose(self, options):
        return next(self.script, 0) % options

    def __call__(self):
        """Work until the trainer can go on; an exhausted script delivers in order."""
        while not self.book.ready:
            action = self.choose(4)
            if self.book._open.unassigned and (action == 0 or not self.held):
                self.held.append(self.book.next_lease(f"maker {self.choose(3)}"))
            elif action == 3 and len(self.held) > 0 and self.choose(3) == 0:
                lost = self.held.pop(self.choose(len(self.held)))
                self.book.release(lost.id, self.book._open.handed_out[lost.id].maker)
            elif self.held:
                lease = self.held.pop(self.choose(len(self.held)))
                self.book.deliver(fulfil(lease), "any maker")
                if action == 2:
                    assert self.book.deliver(fulfil(lease), "any maker") is False
            else:
                return  # nothing admitted: the trainer must refill
            assert self.book.ledger.closes


scripts = st.lists(st.integers(0, 11), max_size=120)


@settings(max_examples=60, deadline=None)
@given(scripts, st.integers(0, 2), st.integers(1, 3), st.sampled_from([1, 2, 4]))
def test_whatever_the_makers_do_the_same_items_come_in_the_same_order(script, staleness, update, lease_prompts):
    the = plan(max_staleness=staleness, update_steps=update, lease_prompts=lease_prompts)
    calm = LeaseBook(the, prompt)
    expected = train(calm, before_take=ScriptedMakers(calm, []))
    book = LeaseBook(the, prompt, wait_timeout=1.0)
    steps = train(book, before_take=ScriptedMakers(book, script))
    assert uids(steps) == uids(expected)
    assert [uid for step in uids(steps) for uid in step] == [f"{o}/{s}" for o in range(24) for s in range(2)]
    for (episode, items), (_, same) in zip(steps, expected, strict=True):
        for item, other in zip(items, same, strict=True):
            assert torch.equal(item.versions, other.versions)
            assert 0 <= episode - int(item.versions.max()) <= staleness
            assert int(item.versions.max()) == max(0, episode - staleness)
    assert book.ledger.as_dict()["trained"] == 48


@settings(max_examples=60, deadline=None)
@given(scripts, st.integers(0, 2), st.floats(0.0, 1.0), st.integers(0, 2))
def test_with_filtering_and_refill_it_is_the_same_too_and_groups_stay_whole(script, staleness, share, limit):
    def keep_some(group):
        keep = (int(group[0].group_id) * 7919 % 100) / 100 >= share
        return FilteredGroup(group, {}) if keep else FilteredGroup((), {"zero_variance": group})

    the = plan(max_staleness=staleness)
    calm = LeaseBook(the, prompt, filter_group=keep_some, wait_timeout=120.0)
    expected = train(calm, before_take=_serving(calm, []))
    the = plan(max_staleness=staleness, buffer_limit=limit)
    book = LeaseBook(the, prompt, filter_group=keep_some, wait_timeout=120.0)
    steps = train(book, before_take=_serving(book, script))
    assert uids(steps) == uids(expected)
    for episode, items in steps:
        groups = group_by_id(items)
        assert all(len(group) == 2 for group in groups)
        assert len(groups) <= 4
        assert all(episode - int(item.versions.max()) <= staleness for item in items)
    assert book.ledger.closes


def _serving(book, script):
    """Two makers in threads of their own, which dawdle, repeat and give up as the script says."""
    numbers = iter(script)

    def serve(name):
        try:
            while True:
                lease = book.next_lease(name)
                action = next(numbers, 0)
                time.sleep(0.0005 * (action % 3))
                if action % 4 == 3:
                    book.release(lease.id, name)
                    continue
                book.deliver(fulfil(lease), name)
                if action % 4 == 2:
                    book.deliver(fulfil(lease), name)
        except ClosedError:
            return

    for name in ("maker_0", "maker_1"):
        threading.Thread(target=serve, args=(name,), daemon=True).start()
    return lambda: None


def test_admission_as_in_the_worked_example():
    the = plan(prompts_per_step=2, lease_prompts=1, update_steps=1, total_steps=4, max_staleness=1)
    book = LeaseBook(the, prompt)
    versions = []
    for episode in range(4):
        book.start_episode(episode)
        versions.append(dict(book._versions))
        for lease_id in range(2 * episode, 2 * episode + 2):
            lease = book.next_lease("m")
            assert lease.id == lease_id
            book.deliver(fulfil(lease), "m")
        book.settle(book.take_step())
    assert versions == [{0: 0, 1: 0, 2: 0, 3: 0}, {2: 0, 3: 0, 4: 1, 5: 1}, {4: 1, 5: 1, 6: 2, 7: 2}, {6: 2, 7: 2}]


def test_staleness_zero_is_synchronous():
    the = plan(max_staleness=0, total_steps=3, update_steps=1)
    book = LeaseBook(the, prompt)
    for episode in range(3):
        book.start_episode(episode)
        assert len(book._open.unassigned) == 2
        for _ in range(2):
            lease = book.next_lease("m")
            assert lease.version == episode
            book.deliver(fulfil(lease), "m")
        book.settle(book.take_step())
        assert not book._open.unassigned


def test_a_refill_is_bounded_and_then_the_step_trains_on_what_it_has():
    the = plan(total_steps=1, update_steps=1, max_staleness=0, max_refill=2)
    book = LeaseBook(
        the, prompt, filter_group=lambda group: FilteredGroup((), {"zero_variance": group}), wait_timeout=5
    )

    def serve():
        try:
            while True:
                book.deliver(fulfil(book.next_lease("m")), "m")
        except ClosedError:
            return

    thread = threading.Thread(target=serve)
    thread.start()
    book.start_episode(0)
    assert book.take_step() == []
    book.close("done")
    thread.join(120)
    assert book.ledger.as_dict()["dropped"] == {"zero_variance": 24}  # 3 times 4 prompts of 2 samples


def test_the_schedule_windowed_takes_what_comes_first_and_writes_it_down():
    book = LeaseBook(plan(schedule="windowed", prompts_per_step=2, lease_prompts=1), prompt)
    book.start_episode(0)
    leases = [book.next_lease("m") for _ in range(4)]
    for lease in reversed(leases):
        book.deliver(fulfil(lease), "m")
    assert [item.uid for item in book.take_step()] == ["3/0", "3/1", "2/0", "2/1"]
    assert book.take_journal() == [
        {"kind": "lease", "step": 0, "lease": 3},
        {"kind": "lease", "step": 0, "lease": 2},
    ]


def test_a_full_buffer_holds_makers_back_but_not_with_what_the_trainer_waits_for():
    book = LeaseBook(plan(buffer_limit=1, max_staleness=2), prompt, wait_timeout=0.1)
    book.start_episode(0)
    leases = [book.next_lease("m") for _ in range(4)]
    book.deliver(fulfil(leases[1]), "m")
    book.deliver(fulfil(leases[2]), "m")
    with pytest.raises(WaitTimeoutError, match=r"slow maker has waited \d+\.\d s for room in the replay buffer"):
        book.deliver(fulfil(leases[3]), "slow maker")
    assert book.deliver(fulfil(leases[0]), "m")


def test_nobody_is_held_back_while_nobody_works_on_what_the_trainer_waits_for():
    book = LeaseBook(plan(buffer_limit=1, max_staleness=2), prompt, wait_timeout=0.1)
    book.start_episode(0)
    leases = [book.next_lease("m") for _ in range(4)]
    book.deliver(fulfil(leases[1]), "m")
    book.deliver(fulfil(leases[2]), "m")
    book.release(leases[0].id, "m")
    assert book.deliver(fulfil(leases[3]), "m")


def test_waiting_has_a_deadline_an_owner_and_a_reason():
    book = LeaseBook(plan(), prompt, wait_timeout=0.05)
    with pytest.raises(WaitTimeoutError, match=r"maker_0 has waited 0\.\d s for the trainer to admit more leases"):
        book.next_lease("maker_0")
    book.start_episode(0)
    with pytest.raises(WaitTimeoutError, match="for lease 0, which no maker has taken"):
        book.take_step()
    book.next_lease("maker_1")
    with pytest.raises(WaitTimeoutError, match="for lease 0, which maker_1 has, longer than wait_timeout=0.05 s"):
        book.take_step()


def test_a_lease_given_up_goes_to_the_next_and_a_late_delivery_still_counts_once():
    book = LeaseBook(plan(), prompt)
    book.start_episode(0)
    first = book.next_lease("dying")
    book.release(first.id, "dying")
    again = book.next_lease("other")
    assert again == first
    assert book.deliver(fulfil(first), "dying")
    assert not book.deliver(fulfil(again), "other")
    assert (book.ledger.leased, book.ledger.buffered, book.ledger.in_flight) == (4, 4, 0)


def test_giving_up_what_another_has_by_now_changes_nothing():
    book = LeaseBook(plan(), prompt)
    book.start_episode(0)
    lease = book.next_lease("slow")
    book.release(lease.id, "slow")
    book.next_lease("other")
    book.release(lease.id, "slow")
    assert lease.id not in book._open.unassigned


def test_overdue_leases_are_known_with_who_has_them():
    book = LeaseBook(plan(), prompt)
    book.start_episode(0)
    lease = book.next_lease("hung")
    assert book.overdue(-1) == {lease.id: "hung"}
    assert book.overdue(60) == {}


def test_a_lease_that_is_held_back_is_not_overdue_between_two_attempts_to_deliver_it():
    book = LeaseBook(plan(buffer_limit=1, max_staleness=2), prompt)
    book.start_episode(0)
    leases = [book.next_lease("m") for _ in range(4)]
    for lease in leases[1:3]:
        book.deliver(fulfil(lease), "m")
    with pytest.raises(WaitTimeoutError):
        book.deliver(fulfil(leases[3]), "m", seconds=0.0)
    assert book.overdue(-1) == {0: "m"}
    book.note_made([0], "m")
    assert book.overdue(-1) == {}
    book.dismiss("m")
    book.next_lease("other")
    assert book.overdue(-1) == {0: "other"}  # which has not made it
    book.note_made([0], "m")
    assert book.overdue(-1) == {0: "other"}


def test_a_refused_delivery_leaves_its_lease_to_become_overdue():
    book = LeaseBook(plan(), prompt)
    book.start_episode(0)
    lease = book.next_lease("m")
    with pytest.raises(ValueError, match="0 were delivered"):
        book.deliver(Delivery(lease.id, ()), "m")
    assert book.overdue(-1) == {0: "m"}


def test_what_a_maker_has_to_deliver_before_the_awaited_lease_is_let_in():
    book = LeaseBook(plan(buffer_limit=1, max_staleness=2), prompt)
    book.start_episode(0)
    leases = [book.next_lease("m") for _ in range(4)]
    for lease in leases[1:3]:
        book.deliver(fulfil(lease), "m")
    book.note_made([leases[0].id], "m")
    book.note_progress([leases[0].id], "m")  # said before, and come late: it is made all the same
    assert book.deliver(fulfil(leases[3]), "m", seconds=0.0)


def test_a_lease_that_its_maker_has_come_to_may_be_late_again():
    book = LeaseBook(plan(), prompt)
    book.start_episode(0)
    lease = book.next_lease("m")
    book.note_made([lease.id], "m")
    assert book.overdue(-1) == {}
    book.note_handing_in(lease.id, "another")
    assert book.overdue(-1) == {}
    book.note_handing_in(lease.id, "m")
    assert book.overdue(-1) == {lease.id: "m"}
    assert book.overdue(60) == {}


def test_garbage_is_refused():
    book = LeaseBook(plan(), prompt)
    book.start_episode(0)
    lease = book.next_lease("m")
    with pytest.raises(ValueError, match="has 4 samples, 1 were delivered"):
        book.deliver(Delivery(lease.id, fulfil(lease).items[:1]), "m")
    with pytest.raises(ValueError, match="lease 99 was never handed out"):
        book.deliver(Delivery(99, fulfil(lease).items), "m")
    assert book.ledger.closes


def test_the_end_of_the_run_wakes_everyone_and_closes_the_ledger():
    book = LeaseBook(plan(), prompt)
    woken = []

    def maker():
        with pytest.raises(ClosedError, match="done"):
            book.next_lease("m")
        woken.append(True)

    thread = threading.Thread(target=maker)
    thread.start()
    book.close("done")
    thread.join(120)
    assert woken == [True]
    book2 = LeaseBook(plan(), prompt)
    book2.start_episode(0)
    lease = book2.next_lease("m")
    book2.next_lease("m")
    book2.deliver(fulfil(lease), "m")
    book2.close("stopped")
    assert book2.ledger.as_dict() | {"tokens": 0} == {
        "leased": 8, "trained": 0, "buffered": 0, "in_flight": 0, "dropped": {"run_ended": 8}, "tokens": 0,
    }  # fmt: skip
    assert book2.ledger.closes


def test_a_lease_must_divide_a_batch():
    with pytest.raises(ValueError, match="lease_prompts=3 does not divide the 4 prompts of a batch"):
        plan(lease_prompts=3)


def test_the_versions_in_use_are_what_open_leases_name_and_this_episodes():
    book = LeaseBook(plan(prompts_per_step=2, lease_prompts=1, update_steps=1), prompt)
    book.start_episode(0)
    first = [book.next_lease("m") for _ in range(2)]
    for lease in first:
        book.deliver(fulfil(lease), "m")
    book.settle(book.take_step())
    book.start_episode(1)
    assert book.versions_in_use() == {0, 1}
    for _ in range(2):
        book.deliver(fulfil(book.next_lease("m")), "m")
    assert book.versions_in_use() == {1}


def test_leases_that_come_in_order_fill_the_buffer_to_its_limit_and_no_further():
    book = LeaseBook(plan(buffer_limit=1, max_staleness=3, lease_prompts=4), prompt, wait_timeout=0.05)
    book.start_episode(0)
    leases = [book.next_lease("m") for _ in range(4)]
    book.deliver(fulfil(leases[0]), "m")
    with pytest.raises(WaitTimeoutError, match="room in the replay buffer"):
        book.deliver(fulfil(leases[1]), "m")
    book.settle(book.take_step())
    assert book.deliver(fulfil(leases[1]), "m")


def test_a_maker_that_was_replaced_may_still_deliver_but_gets_nothing_more():
    book = LeaseBook(plan(), prompt)
    book.start_episode(0)
    lease = book.next_lease("hung")
    book.release(lease.id, "hung")
    book.dismiss("hung")
    assert book.deliver(fulfil(lease), "hung")
    with pytest.raises(ClosedError, match="hung was replaced"):
        book.next_lease("hung")


def test_what_a_dismissed_maker_had_goes_to_others_at_once():
    book = LeaseBook(plan(), prompt)
    book.start_episode(0)
    had = [book.next_lease("hung").id for _ in range(2)]
    other = book.next_lease("other").id
    assert book.dismiss("hung") == had
    assert [book.next_lease("other").id for _ in range(2)] == had
    assert book.dismiss("hung") == []
    assert sorted(book.held_by("other")) == [*had, other]


def test_a_prompt_that_cannot_be_made_leaves_its_lease_to_be_asked_for_again():
    from proa.actors.waiting import LeaseFailedError

    def broken(ordinal):
        raise ValueError("too long")

    book = LeaseBook(plan(), broken)
    book.start_episode(0)
    for _ in range(2):
        with pytest.raises(LeaseFailedError, match="lease 0 cannot be handed out: too long"):
            book.next_lease("m")
    assert book.ledger.leased == 0


def test_a_stale_lease_that_is_given_up_is_let_go_and_counted_once():
    the = plan(prompts_per_step=2, lease_prompts=1, update_steps=1, max_staleness=0, total_steps=3)
    book = LeaseBook(the, prompt)
    book.start_episode(0)
    kept, late = book.next_lease("m"), book.next_lease("slow")
    book.deliver(fulfil(kept), "m")
    book._episode = 1
    book._drop_stale()
    book.release(late.id, "slow")
    assert book.deliver(fulfil(late), "slow") is False
    assert (book.ledger.in_flight, book.ledger.dropped, book.ledger.closes) == (0, {"stale": 4}, True)
    assert book.versions_in_use() == {1}


def test_a_step_that_goes_on_while_the_book_closes_settles_what_it_has():
    book = LeaseBook(plan(prompts_per_step=2, lease_prompts=1), prompt)
    book.start_episode(0)
    for _ in range(3):
        book.deliver(fulfil(book.next_lease("m")), "m")
    items = book.take_step()
    book.close("a lease failed", step_continues=True)
    assert (book.ledger.buffered, book.ledger.closes) == (4, True)
    book.settle(items)
    book.close("over")
    assert (book.ledger.trained, book.ledger.buffered, book.ledger.dropped) == (4, 0, {"run_ended": 2})
    assert book.ledger.closes


def test_what_makers_logged_is_the_mean_over_the_leases_of_a_step():
    book = LeaseBook(plan(prompts_per_step=4, lease_prompts=2, total_steps=1), prompt)
    book.start_episode(0)
    for logged in ({"speed": 1.0, "of_one": 5}, {"speed": 2.0}):
        lease = book.next_lease("maker_0")
        book.deliver(replace(fulfil(lease), logged=logged), "maker_0")
    book.take_step()
    assert book.logged == {"speed": 1.5, "of_one": 5.0}
