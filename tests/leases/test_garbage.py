"""The lease book refuses what was not asked for, and tells what the making of a step took."""

import pytest
import torch
from tests.leases.honest_makers import fulfil, plan, prompt, with_item

from proa.data.lease import Delivery, GarbageError
from proa.leases.book import LeaseBook
from proa.leases.plan import FilteredGroup


def opened(**changes):
    book = LeaseBook(plan(**changes), prompt, wait_timeout=0.1)
    book.start_episode(0)
    return book


def garbage(lease):
    return with_item(fulfil(lease), 2, versions=torch.full((2,), 7))


def test_a_refused_delivery_changes_nothing():
    book = opened()
    lease = book.next_lease("broken")
    before, progress = book.ledger.as_dict(), book.room.progress
    with pytest.raises(GarbageError, match="lease 0, sample 1/0"):
        book.deliver(garbage(lease), "broken")
    assert (book.ledger.as_dict(), book.room.progress) == (before, progress)
    assert book.ledger.closes
    assert book.held_by("broken") == [lease.id]
    assert not book._arrived
    assert book.overdue(-1) == {lease.id: "broken"}  # it does not stand at the door any more


def test_what_was_refused_goes_to_another_maker_and_is_trained():
    book = opened()
    lease = book.next_lease("broken")
    with pytest.raises(GarbageError):
        book.deliver(garbage(lease), "broken")
    book.release(lease.id, "broken")
    again = book.next_lease("honest")
    assert again == lease
    assert book.deliver(fulfil(again), "honest")
    assert book.deliver(fulfil(book.next_lease("honest")), "honest")
    items = book.take_step()
    book.settle(items)
    assert (len(items), book.ledger.trained, book.ledger.in_flight, book.ledger.closes) == (8, 8, 0, True)


def test_whoever_was_refused_may_still_deliver_better():
    book = opened()
    lease = book.next_lease("m")
    with pytest.raises(GarbageError):
        book.deliver(garbage(lease), "m")
    assert book.deliver(fulfil(lease), "m")


def test_a_lease_is_compared_with_what_was_asked_and_prompts_are_not_asked_for_again():
    asked = []
    book = LeaseBook(plan(), lambda ordinal: asked.append(ordinal) or prompt(ordinal))
    book.start_episode(0)
    lease = book.next_lease("m")
    book.deliver(fulfil(lease), "m")
    assert asked == [0, 1]


def test_what_was_asked_is_let_go_when_it_has_come():
    book = opened()
    lease = book.next_lease("m")
    assert book._open.handed_out[lease.id].lease is lease
    book.deliver(fulfil(lease), "m")
    assert not book._open.handed_out


def test_a_lease_that_is_known_already_is_not_looked_at():
    book = opened(prompts_per_step=2)
    lease = book.next_lease("m")
    book.deliver(fulfil(lease), "m")
    assert book.deliver(garbage(lease), "m") is False  # it waits to be trained on
    book.take_step()
    assert book.deliver(garbage(lease), "m") is False  # it is trained on
    assert book.deliver(Delivery(lease.id, ()), "m") is False
    assert book.ledger.closes


def test_what_was_admitted_but_never_handed_out_is_refused():
    book = opened()
    first = book.next_lease("m")
    stolen = Delivery(1, fulfil(first).items)
    with pytest.raises(GarbageError, match="lease 1 was never handed out"):
        book.deliver(stolen, "m")
    with pytest.raises(GarbageError, match="lease -1 was never handed out"):
        book.deliver(Delivery(-1, fulfil(first).items), "m")
    assert book.ledger.closes
    assert book.next_lease("m").id == 1


def stale_with_a_maker():
    """A book that expects a lease in vain: too old to be trained on, and still with its maker."""
    book = LeaseBook(plan(prompts_per_step=2, lease_prompts=1, update_steps=1, max_staleness=0), prompt)
    book.start_episode(0)
    lease = book.next_lease("slow")
    book._episode = 1
    book._drop_stale()
    return book, lease


def test_garbage_that_comes_too_late_is_refused_too_and_counted_once_it_is_given_up():
    book, lease = stale_with_a_maker()
    with pytest.raises(GarbageError, match="has 2 samples, 1 were"):
        book.deliver(Delivery(lease.id, fulfil(lease).items[:1]), "slow")
    assert (book.ledger.in_flight, book.ledger.closes) == (2, True)
    book.release(lease.id, "slow")
    assert (book.ledger.in_flight, book.ledger.dropped["stale"], book.ledger.closes) == (0, 2, True)


def test_what_comes_too_late_is_dropped_with_its_tokens():
    book, lease = stale_with_a_maker()
    made = fulfil(lease)
    assert book.deliver(made, "slow") is False
    assert book.deliver(made, "slow") is False
    assert (book.ledger.in_flight, book.ledger.dropped["stale"], book.ledger.closes) == (0, 2, True)
    assert book.ledger.tokens["dropped"] == made.tokens == 3
    assert not book._open.handed_out


# -- what the making took ----------------------------------------------------------------------------


def bring(book, maker, **seconds):
    lease = book.next_lease(maker)
    made = fulfil(lease)
    book.deliver(Delivery(lease.id, made.items, maker, seconds), maker)
    return made.tokens


def test_a_step_tells_what_the_making_of_its_leases_took():
    book = opened()
    tokens = bring(book, "maker_0", generate=2.0, score=0.5, load=1.0, wait=0.25)
    tokens += bring(book, "maker_1", generate=1.0, score=0.25, wait=4.0)
    bring(book, "maker_2", generate=100.0)  # of the next step
    assert book.made == {}
    book.take_step()
    assert book.made == {
        "maker.generate_seconds": 3.0, "maker.score_seconds": 0.75, "maker.load_seconds": 1.0,
        "maker.wait_seconds": 4.25, "maker.tokens_per_second": tokens / 3.0, "makers": 2.0,
        "reward_failed_fraction": 0.0,
        "reward_zero_std_fraction": 0.0,
    }  # fmt: skip
    assert all(type(value) is float for value in book.made.values())


def test_each_step_tells_of_its_own_leases_and_only_what_is_known():
    book = opened()
    for _ in range(2):
        bring(book, "maker_0", generate=2.0)
    book.settle(book.take_step())
    for _ in range(2):
        bring(book, "maker_0", score=0.5, send=9.0)
    book.settle(book.take_step())
    shares = {"reward_failed_fraction": 0.0, "reward_zero_std_fraction": 0.0}
    assert book.made == {"maker.score_seconds": 1.0, "makers": 1.0, **shares}


def test_a_delivery_that_tells_nothing_adds_nothing():
    book = opened()
    tokens = bring(book, "maker_0", generate=2.0)
    lease = book.next_lease("silent")
    book.deliver(fulfil(lease), "silent")
    book.take_step()
    assert book.made == {
        "maker.generate_seconds": 2.0,
        "maker.tokens_per_second": tokens / 2.0,
        "makers": 1.0,
        "reward_failed_fraction": 0.0,
        "reward_zero_std_fraction": 0.0,
    }


def drop_the_first(group):
    return FilteredGroup((), {"zero_variance": group}) if group[0].group_id == "0" else FilteredGroup(group, {})


def test_what_was_filtered_out_was_made_too():
    book = LeaseBook(plan(prompts_per_step=2, lease_prompts=1), prompt, filter_group=drop_the_first)
    book.start_episode(0)
    tokens = sum(bring(book, f"maker_{number}", generate=1.0) for number in range(3))
    assert len(book.take_step()) == 4
    assert book.made == {
        "maker.generate_seconds": 3.0,
        "maker.tokens_per_second": tokens / 3.0,
        "makers": 3.0,
        "reward_failed_fraction": 0.0,
        "reward_zero_std_fraction": 0.0,
    }


def test_a_step_that_consumed_no_lease_tells_nothing():
    the = plan(prompts_per_step=1, lease_prompts=1, total_steps=2, max_staleness=0, max_refill=0)
    book = LeaseBook(the, prompt, filter_group=drop_the_first)
    book.start_episode(0)
    for _ in range(2):
        bring(book, "maker_0", generate=1.0)
    book.settle(book.take_step())  # it used up what was admitted for the next one
    assert book.made["maker.generate_seconds"] == 2.0
    assert book.take_step() == []
    assert book.made == {}
