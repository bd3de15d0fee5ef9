"""Which samples are left out, and what is said of why: of this step, and of the run."""

import torch

from proa.algorithms import DAPO
from proa.data.experience import BufferItem
from proa.data.facts import SampleFacts
from proa.learning.group_filter import GroupFilter
from proa.leases.ledger import Ledger

FAILED = SampleFacts(reward_error="broken", reward_failure="reward_failed")


def group(*rewards):
    tokens = torch.tensor([1, 2])
    return tuple(
        BufferItem(
            tokens,
            torch.zeros(1),
            reward=None if reward is None else torch.tensor(float(reward)),
            facts=SampleFacts(reward_error="broken", reward_failure="reward_failed")
            if reward is None
            else SampleFacts(),
        )
        for reward in rewards
    )


def test_a_step_is_not_blamed_on_what_was_left_out_of_an_earlier_one():
    group_filter = GroupFilter(DAPO())
    group_filter.filter(group(None, None))
    assert group_filter.describe_step() == "; 2 samples had no usable reward, the last because: broken"
    group_filter.start_step()
    assert group_filter.filter(group(1, 1)).dropped.keys() == {"zero_variance"}
    assert group_filter.describe_step() == "; 2 samples dropped as zero_variance"
    group_filter.filter(group(None, 1))
    assert group_filter.describe_step() == (
        "; 1 sample dropped as group_too_small; 2 samples dropped as zero_variance; 1 sample had no usable "
        "reward, the last because: broken"
    )


def test_of_a_run_every_reason_is_given_with_what_the_first_failure_said_also_after_a_resume():
    group_filter = GroupFilter(DAPO())
    group_filter.filter(group(None, 1))
    resumed = GroupFilter(DAPO())
    resumed.load_state_dict(group_filter.state_dict())
    ledger = Ledger(dropped={"zero_variance": 4, "reward_failed": 3, "stale": 8})
    assert resumed.describe_run(ledger) == (
        "; 4 samples dropped as zero_variance; 3 samples had no usable reward, the first because: broken"
    )
