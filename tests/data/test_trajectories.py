"""Rows of a batch as trajectories: laid out by trajectory and back, counted as samples."""

from dataclasses import replace

import pytest
import torch
from tests.leases.honest_makers import fulfil, prompt

from proa.data.experience import BufferItem, merge
from proa.data.experience_changes import as_delivered, copied, refuse_other_changes, shown_to_hooks
from proa.data.facts import SampleFacts, TrajectoryFacts
from proa.data.lease import GarbageError, Lease, check_delivery
from proa.data.masks import longest_turns, prompt_indices, sampled_lengths
from proa.data.saved_items import items_from, items_tree
from proa.data.trajectories import Trajectories, count_samples, split_samples
from proa.errors import HookError


def row(uid, tokens, prompt_length, *, given=(), reward=1.0, **more):
    """A row whose tokens at these places of its completion the environment wrote."""
    actions = len(tokens) - prompt_length
    versions = torch.zeros(actions, dtype=torch.int32)
    versions[list(given)] = -1
    return BufferItem(
        torch.tensor(tokens),
        torch.full((actions,), -0.5),
        reward=None if reward is None else torch.tensor(reward),
        attention_mask=torch.ones(len(tokens), dtype=torch.bool),
        action_mask=versions >= 0,
        versions=versions,
        turn_rewards=torch.zeros(actions),
        uid=uid,
        group_id=uid.partition("/")[0],
        **more,
    )


FORKED = [row("0/0", [1, 2, 3, 4], 1, given=[1]), row("0/0", [1, 5, 6], 2), row("0/1", [1, 7, 8], 1)]


def test_rows_of_one_uid_are_one_sample():
    assert [len(rows) for rows in split_samples(FORKED)] == [2, 1]
    assert count_samples(FORKED) == 2
    assert count_samples([replace(FORKED[0], uid=""), replace(FORKED[0], uid="")]) == 2


def test_values_are_laid_out_by_trajectory_and_back():
    batch = merge(FORKED)
    trajectories = Trajectories(batch)
    numbers_BA = torch.arange(1, 10).view(3, 3)
    assert trajectories.join(numbers_BA).tolist() == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]]
    assert torch.equal(trajectories.split(trajectories.join(numbers_BA)), numbers_BA)
    values_B = torch.tensor([1, 2, 3])
    assert trajectories.first(values_B).tolist() == [1, 3]
    assert trajectories.last(values_B).tolist() == [2, 3]
    assert trajectories.sum(values_B).tolist() == [3, 3]


def test_turns_of_two_rows_that_came_in_turn_are_laid_out_in_the_order_of_time():
    """An agent with two conversations: turn 0 in one, 1 in the other, 2 in the first again."""
    first = replace(FORKED[0], turns=torch.tensor([0, 0, 2]))
    other = replace(FORKED[1], turns=torch.tensor([1]))
    batch = merge([other, first, replace(FORKED[2], turns=torch.tensor([0, 1]))])
    trajectories = Trajectories(batch)
    numbers_BA = torch.tensor([[4, 0, 0], [1, 2, 3], [5, 6, 0]])
    joined_NT = trajectories.join(numbers_BA)
    assert [number for number in joined_NT[0].tolist() if number] == [1, 2, 4, 3]
    assert [number for number in joined_NT[1].tolist() if number] == [5, 6]
    assert torch.equal(trajectories.split(joined_NT), numbers_BA)
    assert trajectories.last(torch.tensor([1, 2, 3])).tolist() == [2, 3]


def test_a_batch_without_forks_is_not_touched():
    batch = merge([FORKED[0], FORKED[2]])
    values = torch.rand(2, 3)
    assert Trajectories(batch).join(values) is values
    assert Trajectories(batch).split(values) is values


def test_what_the_environment_said_is_not_counted_as_sampled():
    assert [item.sampled_length for item in FORKED] == [2, 1, 2]
    assert sampled_lengths(merge(FORKED)).tolist() == [2, 1, 2]


def test_the_longest_turn_of_a_trajectory_is_what_a_limit_of_a_turn_is_compared_with():
    rows = [*FORKED, row("0/2", [1, 2, 3, 4, 5, 6, 7], 1, given=[2])]
    batch = merge(rows)
    assert longest_turns(batch).tolist() == [1, 1, 2, 3]
    assert Trajectories(batch).most(longest_turns(batch)).tolist() == [1, 2, 3]
    assert longest_turns(merge([replace(one, versions=None) for one in rows])).tolist() == [3, 1, 2, 6]
    silent = row("0/3", [1, 2, 3, 4, 5, 6], 1)  # an environment said nothing between two turns
    assert longest_turns(merge([replace(silent, turns=torch.tensor([0, 0, 1, 1, 1]))])).tolist() == [3]


def test_a_limit_of_tokens_or_turns_truncates_a_trajectory():
    truncated = {
        ending: SampleFacts("stop", trajectory=TrajectoryFacts(ending, (), 1, (None,))).is_truncated
        for ending in ("finished", "token_limit", "max_turns")
    }
    assert truncated == {"finished": False, "token_limit": True, "max_turns": True}
    assert [SampleFacts(reason).is_truncated for reason in ("length", "stop")] == [True, False]


def test_rows_of_a_group_with_other_prompts_share_none():
    assert prompt_indices(merge(FORKED)).tolist() == [0, 1, 0]


def test_facts_of_a_trajectory_survive_a_checkpoint():
    facts = SampleFacts(trajectory=TrajectoryFacts("finished", ({"role": "user", "content": "?"},), 2, (None, 1.0)))
    (item,) = items_from(items_tree([replace(FORKED[0], facts=facts)]))
    assert item.facts == facts


# -- the gate ----------------------------------------------------------------------------------------

LEASE = Lease(5, 0, (prompt(10),), ((1, 2),))
WHOLE, OTHER = fulfil(LEASE).items
MADE = fulfil(LEASE)


def test_a_sample_may_have_several_rows_and_only_the_first_begins_with_the_prompt():
    second = replace(WHOLE, sequences=torch.cat([torch.tensor([9, 9]), WHOLE.sequences]))
    check_delivery(LEASE, replace(MADE, items=(WHOLE, second, OTHER)))
    with pytest.raises(GarbageError, match="does not begin with"):
        check_delivery(LEASE, replace(MADE, items=(second, WHOLE, OTHER)))


def test_rows_of_another_sample_between_are_refused():
    with pytest.raises(GarbageError, match="lease 5 has 2 samples, 3 were delivered|in its place is sample"):
        check_delivery(LEASE, replace(MADE, items=(WHOLE, OTHER, WHOLE)))


def test_tokens_that_nobody_sampled_may_not_be_trained():
    given = replace(WHOLE, versions=torch.full_like(WHOLE.versions, -1))
    with pytest.raises(GarbageError, match="tokens that were not sampled"):
        check_delivery(LEASE, replace(MADE, items=(given, OTHER)))


def test_a_trajectory_that_ended_before_its_first_token_is_delivered_without_a_reward():
    nothing = BufferItem(
        torch.tensor(LEASE.prompts[0].tokens), torch.zeros(0), attention_mask=torch.ones(2, dtype=torch.bool),
        action_mask=torch.zeros(0, dtype=torch.bool), versions=torch.zeros(0, dtype=torch.int32), uid="10/0",
        group_id="10", facts=SampleFacts(trajectory=TrajectoryFacts("tool_failed"), reward_failure="tool_failed"),
    )  # fmt: skip
    check_delivery(LEASE, replace(MADE, items=(nothing, OTHER)))
    with pytest.raises(GarbageError, match="has no completion"):
        check_delivery(LEASE, replace(MADE, items=(replace(nothing, reward=torch.tensor(0.0)), OTHER)))
    shown = shown_to_hooks([nothing, OTHER])
    refuse_other_changes("a hook", copied(shown), shown)
    assert [item.action_length for item in as_delivered(shown)] == [0, OTHER.action_length]


# -- hooks -------------------------------------------------------------------------------------------


def test_hooks_may_not_train_what_the_environment_said_nor_reward_rows_differently():
    shown = shown_to_hooks(FORKED)
    before = copied(shown)
    shown.action_mask[0, 1] = True
    with pytest.raises(HookError, match="tokens that the environment wrote"):
        refuse_other_changes("a hook", before, shown)
    shown = copied(before)
    shown.reward[1] = 2.0
    with pytest.raises(HookError, match=r"rows 0 to 1, which are one trajectory \(0/0\), different rewards"):
        refuse_other_changes("a hook", before, shown)
    shown = copied(before)
    shown.reward[:2] = 2.0
    refuse_other_changes("a hook", before, shown)
