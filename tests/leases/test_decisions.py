"""Decisions that a run repeats from the journal of another."""

import torch

from proa.algorithms import GRPO
from proa.data.experience import BufferItem
from proa.data.facts import SampleFacts
from proa.learning.group_filter import GroupFilter
from proa.leases.decisions import Decisions


def group():
    """Samples with a reward, with one that failed, and with none, because no function applied."""
    facts = [SampleFacts(), SampleFacts(reward_failure="reward_failed", reward_error="boom"), SampleFacts()]
    rewards = [torch.tensor(1.0), None, None]
    return [
        BufferItem(torch.tensor([2, 3]), torch.zeros(1), reward=reward, uid=f"0/{index}", group_id="0", facts=own)
        for index, (reward, own) in enumerate(zip(rewards, facts, strict=True))
    ]


def test_samples_without_a_reward_count_under_the_same_reasons_when_the_run_is_repeated():
    def dropped(decisions):
        kept = GroupFilter(GRPO()).filter(decisions.as_scored(group()))
        return {reason: [item.uid for item in items] for reason, items in kept.dropped.items()}

    first, again = Decisions(), Decisions()
    expected = dropped(first)
    journal = first.take()
    again.repeat(journal)
    assert dropped(again) == expected
    assert expected["no_reward"] == ["0/2"]
    assert again.take() == journal
