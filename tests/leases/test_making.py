"""What a step's metrics say of the leases that were consumed for it."""

import torch

from proa.data.experience import BufferItem
from proa.data.facts import SampleFacts
from proa.leases.making import Making


def sample(reward, finish_reason="stop", **logged):
    value = None if reward is None else torch.tensor(float(reward))
    facts = SampleFacts(finish_reason, reward_logged=logged)
    return BufferItem(torch.tensor([1, 2]), torch.tensor([-1.0]), reward=value, facts=facts)


def made(*groups):
    making = Making()
    for group in groups:
        making.add_group(group)
    return making


def test_groups_whose_rewards_are_all_equal_are_a_share_of_those_that_can_be_compared():
    alike, differing, alone = [sample(1), sample(1)], [sample(0), sample(1)], [sample(1), sample(None)]
    assert made(alike, differing, alone).metrics()["reward_zero_std_fraction"] == 0.5
    assert "reward_zero_std_fraction" not in made(alone).metrics()


def test_truncated_samples_are_a_share_of_those_whose_end_is_known():
    group = [sample(1, "length"), sample(1), sample(1, None)]
    assert made(group).metrics()["truncated_fraction"] == 0.5
    assert "truncated_fraction" not in made([sample(1, None)]).metrics()


def test_numbers_that_rewards_logged_are_averaged_over_the_samples_that_have_them_and_text_is_not():
    making = made([sample(1, found=2.0, answer="4"), sample(0, found=4.0)], [sample(0)])
    assert making.logged() == {"found": 3.0}


def test_a_saved_step_goes_on_with_the_same_numbers():
    making = made([sample(1, "length", found=2.0), sample(1)])
    assert Making.from_saved(making.state_dict()) == making
