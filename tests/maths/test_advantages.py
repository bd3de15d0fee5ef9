"""Advantages equal their definitions, group by group, and say exactly 0 where there is nothing to compare."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.maths.advantages import NOISE, equal_within_group, group_relative, leave_one_out

torch.set_num_threads(1)  # two sum in another order than one

ADVANTAGES = [group_relative, leave_one_out, lambda r, g: group_relative(r, g, scale_by_std=False)]

rewards = st.one_of(
    st.sampled_from([0.0, 1.0, 0.3, 0.1 + 0.2, -1.0]),
    st.floats(-5, 5, allow_subnormal=False).map(lambda x: round(x, 3)),
)
batches = st.lists(st.tuples(rewards, st.integers(0, 3)), min_size=1, max_size=16)


def tensors(batch):
    """Rewards and groups, with the groups' numbers made 0 to n-1 in the order of their first member."""
    numbers = {}
    groups = [numbers.setdefault(group, len(numbers)) for _, group in batch]
    return torch.tensor([reward for reward, _ in batch], dtype=torch.float64), torch.tensor(groups)


def loop_over_groups(rewards_B, groups_B, advantages_of_group):
    rewards, groups = rewards_B.tolist(), groups_B.tolist()
    result = [0.0] * len(rewards)
    for group in set(groups):
        rows = [row for row in range(len(rewards)) if groups[row] == group]
        values = [rewards[row] for row in rows]
        if max(values) - min(values) < NOISE * max(1, *(abs(value) for value in values)):
            continue
        for row, advantage in zip(rows, advantages_of_group(values), strict=True):
            result[row] = advantage
    return torch.tensor(result, dtype=torch.float64)


def assert_close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(batches)
def test_group_relative_is_the_loop_over_groups(batch):
    def of_group(values):
        mean, std = statistics.fmean(values), statistics.stdev(values)
        return [(value - mean) / (std + 1e-4) for value in values]

    rewards_B, groups_B = tensors(batch)
    assert_close(group_relative(rewards_B, groups_B), loop_over_groups(rewards_B, groups_B, of_group))


@settings(deadline=None)
@given(batches)
def test_group_relative_without_std_is_the_deviation_from_the_mean(batch):
    def of_group(values):
        return [value - statistics.fmean(values) for value in values]

    rewards_B, groups_B = tensors(batch)
    expected_B = loop_over_groups(rewards_B, groups_B, of_group)
    assert_close(group_relative(rewards_B, groups_B, scale_by_std=False), expected_B)


@settings(deadline=None)
@given(batches)
def test_leave_one_out_is_the_deviation_from_the_mean_of_the_others(batch):
    def of_group(values):
        return [value - statistics.fmean(values[:i] + values[i + 1 :]) for i, value in enumerate(values)]

    rewards_B, groups_B = tensors(batch)
    assert_close(leave_one_out(rewards_B, groups_B), loop_over_groups(rewards_B, groups_B, of_group))


def test_golden_numbers():
    rewards_B, groups_B = torch.tensor([1, 0, 0.5, 0.25], dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    relative = torch.tensor([1.317157, -1.024455, 0.146351, -0.439052], dtype=torch.float64)
    left_out = torch.tensor([0.75, -0.583333, 0.083333, -0.25], dtype=torch.float64)
    torch.testing.assert_close(group_relative(rewards_B, groups_B), relative, rtol=0, atol=1e-6)
    torch.testing.assert_close(leave_one_out(rewards_B, groups_B), left_out, rtol=0, atol=1e-6)


@pytest.mark.parametrize("advantages", ADVANTAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", [[0.1 + 0.2, 0.3, 0.3], [0.1] * 3, [0.1 + 0.2 - 0.3, 0.0], [1e6 + 0.1, 1e6 + 0.2]])
def test_equal_rewards_give_exactly_zero_whatever_the_noise(advantages, dtype, values):
    advantages_B = advantages(torch.tensor(values, dtype=dtype), torch.zeros(len(values), dtype=torch.long))
    assert advantages_B.tolist() == [0.0] * len(values)


def test_a_small_but_real_difference_is_not_taken_for_noise():
    rewards_B = torch.tensor([0.5, 0.501])
    assert not equal_within_group(rewards_B, torch.zeros(2, dtype=torch.long)).any()


@pytest.mark.parametrize("advantages", ADVANTAGES)
def test_a_group_of_one_gives_zero(advantages):
    assert advantages(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0, 1, 1]))[0] == 0


@pytest.mark.parametrize("advantages", ADVANTAGES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_shows_in_its_group_and_in_no_other(advantages, bad):
    advantages_B = advantages(torch.tensor([bad, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    assert not advantages_B[:2].isfinite().any()
    assert torch.equal(advantages_B[2:], advantages(torch.tensor([0.0, 1.0]), torch.tensor([0, 0])))


@pytest.mark.parametrize("advantages", ADVANTAGES)
def test_no_rewards_give_no_advantages(advantages):
    assert advantages(torch.zeros(0), torch.zeros(0, dtype=torch.long)).shape == (0,)


@pytest.mark.parametrize("advantages", ADVANTAGES)
@settings(deadline=None)
@given(batch=batches)
def test_a_group_has_the_same_bits_alone_and_among_others(advantages, batch):
    rewards_B, groups_B = tensors(batch)
    advantages_B = advantages(rewards_B, groups_B)
    for group in groups_B.unique():
        rows = groups_B == group
        alone = advantages(rewards_B[rows], torch.zeros(int(rows.sum()), dtype=torch.long))
        assert torch.equal(advantages_B[rows], alone)


@pytest.mark.parametrize("advantages", ADVANTAGES)
@settings(deadline=None)
@given(batch=batches, seed=st.integers(0, 99))
def test_the_order_of_rows_and_the_numbering_of_groups_do_not_matter(advantages, batch, seed):
    rewards_B, groups_B = tensors(batch)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(batch), generator=generator)
    renumbered = torch.randperm(int(groups_B.max()) + 1, generator=generator)[groups_B]
    assert_close(advantages(rewards_B[order], renumbered[order]), advantages(rewards_B, groups_B)[order])
