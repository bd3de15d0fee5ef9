"""A lease book that is saved between two steps and goes on elsewhere: the same batches, the same ledger."""

import contextlib
import threading
from dataclasses import replace

import pytest
import torch
from tests.leases.honest_makers import fulfil, plan, prompt

from proa.actors.waiting import StepInterrupted, WaitTimeoutError
from proa.data.experience import BufferItem
from proa.data.facts import SampleFacts
from proa.data.sampling import Sampling
from proa.data.saved_items import experience_from, experience_tree, items_from, items_tree
from proa.leases.book import LeaseBook
from proa.leases.plan import FilteredGroup
from proa.record.state_files import read_state, write_state

THE = {"prompts_per_step": 4, "lease_prompts": 1, "update_steps": 2, "total_steps": 8, "max_staleness": 1}


def drop_every_third(group):
    return FilteredGroup((), {"unlucky": group}) if int(group[0].group_id) % 3 == 2 else FilteredGroup(group, {})


def work(book, over):
    """A maker that brings whatever it gets, until it is told."""
    while not over.is_set():
        with contextlib.suppress(WaitTimeoutError):
            book.deliver(fulfil(book.next_lease("m", seconds=0.05)), "m")


def train(book, steps, *, first=0):
    """The uids of each step's batch."""
    over, batches = threading.Event(), []
    maker = threading.Thread(target=work, args=(book, over))
    maker.start()
    try:
        for step in range(first, first + steps):
            book.start_episode(step // 2)
            items = book.take_step()
            book.settle(items)
            batches.append([item.uid for item in items])
    finally:
        over.set()
        maker.join()
    return batches


@pytest.mark.parametrize("filter_group", [None, drop_every_third], ids=["all", "filtered"])
@pytest.mark.parametrize("boundary", [1, 2, 3, 5])
def test_it_goes_on_as_if_nothing_had_been(tmp_path, filter_group, boundary):
    settings = {"filter_group": filter_group} if filter_group else {}
    whole = LeaseBook(plan(**THE), prompt, **settings)
    expected = train(whole, 8)
    book = LeaseBook(plan(**THE), prompt, **settings)
    begun = train(book, boundary)
    if book._open.unassigned:
        book.next_lease("somebody")  # has it, and will never bring it
    write_state(tmp_path / "state", book.state_dict())
    again = LeaseBook(plan(**THE), prompt, **settings)
    again.load_state_dict(read_state(tmp_path / "state"))
    assert again.ledger.closes
    assert again.ledger.as_dict() == book.ledger.as_dict()
    assert begun + train(again, 8 - boundary, first=boundary) == expected
    assert again._versions == whole._versions
    for one in (again, whole):
        one.close("over")
    assert again.ledger.as_dict() == whole.ledger.as_dict()


def assemble(book, leases):
    """Deliver that many leases, whatever the step asks for, and interrupt the trainer when they are used up."""
    taken = []

    def deliver():
        for _ in range(leases):
            lease = book.next_lease("m", seconds=60.0)
            made = replace(fulfil(lease), made_by="m", seconds={"generate": 1.0}, spans=(("generate", 1.0, 1.0),))
            book.deliver(made, "m")
            taken.append((lease.id, lease.version))
        with book.room as room:
            assert room._condition.wait_for(lambda: not book._arrived, 60.0)
        book.interrupt()

    maker = threading.Thread(target=deliver)
    maker.start()
    with contextlib.suppress(StepInterrupted):
        book.take_step()
    maker.join()
    return taken


def nothing_is_of_use(group):
    return FilteredGroup((), {"zero_variance": group})


@pytest.mark.parametrize("schedule", ["in_order", "windowed"])
def test_a_step_that_is_interrupted_in_a_refill_goes_on_as_if_nothing_had_been(tmp_path, schedule):
    """Four leases are a step's; twelve more may be asked for, and no interrupt makes that more."""
    the = plan(**THE | {"total_steps": 1, "update_steps": 1, "max_staleness": 0, "schedule": schedule})
    whole = LeaseBook(the, prompt, filter_group=nothing_is_of_use)
    whole.start_episode(0)
    expected = assemble(whole, 16)
    book = LeaseBook(the, prompt, filter_group=nothing_is_of_use)
    book.start_episode(0)
    begun = assemble(book, 7)
    write_state(tmp_path / "state", book.state_dict())
    again = LeaseBook(the, prompt, filter_group=nothing_is_of_use, wait_timeout=60.0)
    again.load_state_dict(read_state(tmp_path / "state"))
    again.start_episode(0)
    assert begun + assemble(again, 9) == expected
    assert (again._admitted, again._steps_taken) == (whole._admitted, whole._steps_taken) == (16, 1)
    assert again.made == whole.made
    assert whole.made["maker.generate_seconds"] == 16.0
    assert again.take_journal() == whole.take_journal()
    assert again.take_spans() == whole.take_spans()


PARTS = ["admitted", "versions", "version_ids", "next", "consumed_ahead", "handed_out", "arrived", "ledger", "episode"]


@pytest.mark.parametrize("part", PARTS)
def test_no_part_of_it_can_be_left_out(part):
    """Each is of use: without it the book goes on differently, or not at all."""
    book = LeaseBook(plan(**THE | {"total_steps": 20}), prompt)
    book.start_episode(0)
    for lease in [book.next_lease("m") for _ in range(8)]:
        book.deliver(fulfil(lease), "m")
    for _ in range(2):
        book.settle(book.take_step())
    book.start_episode(1)
    taken = [book.next_lease("m") for _ in range(4)]
    book.deliver(fulfil(taken[2]), "m")
    book._mark_consumed(taken[1].id)
    empty = LeaseBook(plan(**THE), prompt).state_dict()
    again = LeaseBook(plan(**THE), prompt)
    try:
        again.load_state_dict(book.state_dict() | {part: empty[part]})
    except (KeyError, ValueError):
        return
    assert describe(again) != describe(LeaseBookAfter(book))


OF_0_1 = (
    "episode", "steps_taken", "versions", "next", "consumed_ahead", "handed_out", "in_vain", "arrived", "groups",
    "ledger",
)  # fmt: skip


def test_the_state_of_version_0_1_has_the_versions_of_all_leases_and_loads():
    book = LeaseBook(plan(**THE), prompt)
    train(book, 3)
    saved = book.state_dict()
    old = {key: value for key, value in saved.items() if key in OF_0_1}
    old["versions"] = torch.tensor([0] * 8 * 2 + [1] * 8)  # 8 leases an episode; two episodes may be under way
    again = LeaseBook(plan(**THE), prompt)
    again.load_state_dict(old)
    assert describe(LeaseBookAfter(again)) == describe(LeaseBookAfter(book))


def test_the_book_of_a_long_run_is_no_larger_than_that_of_a_short_one(tmp_path):
    """In memory and saved: whatever counts leases that are done with would show here."""
    sizes = {}
    for steps in (10, 100):
        book = LeaseBook(plan(**THE | {"total_steps": 200}), prompt, filter_group=drop_every_third)
        train(book, steps)
        while book._open.unassigned:  # whatever the maker was at when training ended
            book.deliver(fulfil(book.next_lease("m")), "m")
        write_state(tmp_path / str(steps), book.state_dict())
        files = sum(file.stat().st_size for file in (tmp_path / str(steps)).iterdir())
        parts = [value for value in vars(book).values() if hasattr(value, "__len__")]
        sizes[steps] = (max(map(len, parts)), files)
    assert sizes[100][0] == sizes[10][0]
    assert sizes[100][1] < 1.1 * sizes[10][1]  # numbers have more digits


def describe(book):
    return (
        book._admitted, book._versions, book._next, book._consumed_ahead, sorted(book._open.unassigned),
        sorted(book._open.handed_out), list(book._arrived), book.ledger.as_dict(), book._episode,
    )  # fmt: skip


def LeaseBookAfter(book):  # noqa: N802
    again = LeaseBook(plan(**THE), prompt)
    again.load_state_dict(book.state_dict())
    return again


def test_items_and_batches_come_back_as_they_were(tmp_path):
    from proa.data.experience import merge

    items = [
        BufferItem(
            torch.arange(3 + n), torch.rand(n), reward=torch.tensor(float(n)), uid=f"{n}/0", group_id=str(n),
            sampling=Sampling(), facts=SampleFacts("stop", {"f": 0.5}, "an error", "reward_failed"),
        )
        for n in range(1, 4)
    ]  # fmt: skip
    batch = merge(items)
    batch.old_log_probs = batch.action_log_probs * 2
    write_state(tmp_path / "state", {"items": items_tree(items), "batch": experience_tree(batch)})
    read = read_state(tmp_path / "state")
    for ours, theirs in zip(items_from(read["items"]), items, strict=True):
        assert torch.equal(ours.sequences, theirs.sequences)
        assert torch.equal(ours.action_log_probs, theirs.action_log_probs)
        assert torch.equal(ours.reward, theirs.reward)
        assert (ours.uid, ours.sampling, ours.facts) == (theirs.uid, theirs.sampling, theirs.facts)
        assert ours.values is None
    again = experience_from(read["batch"], "cpu")
    assert torch.equal(again.old_log_probs, batch.old_log_probs)
    assert (again.uids, again.group_ids, again.sampling, again.facts) == (
        batch.uids, batch.group_ids, batch.sampling, batch.facts,
    )  # fmt: skip


def with_notes(facts):
    """As version 0.1 saved it."""
    notes = {"finish_reason": facts["finish_reason"], "reward_parts": facts["reward_parts"]}
    if facts["reward_error"] is not None:
        notes |= {"error": facts["reward_error"], "reward_failure": facts["reward_failure"]}
    return notes


def test_what_version_0_1_saved_is_read_with_its_facts():
    from proa.data.experience import merge

    known = [SampleFacts("stop", {"f": 0.5}), SampleFacts("length", {"f": None}, "boom", "reward_failed")]
    items = [
        BufferItem(torch.arange(3), torch.rand(1), uid=f"0/{n}", group_id="0", facts=facts)
        for n, facts in enumerate(known)
    ]
    saved, batch = items_tree(items), experience_tree(merge(items))
    saved["plain"]["notes"] = tuple(map(with_notes, saved["plain"].pop("facts")))
    batch["notes"] = tuple(map(with_notes, batch.pop("facts")))
    assert [item.facts for item in items_from(saved)] == known
    assert list(experience_from(batch, "cpu").facts) == known
    assert items_from(items_tree([])) == ()
