"""Generalized advantages are the sums that define them, whatever the lengths and whatever stands in the padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.maths.gae import generalized_advantages, rewards_to_go

torch.set_num_threads(1)  # two sum in another order than one

GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30]


@st.composite
def batches(draw, *, holes=False):
    """Rewards, values, mask and bootstrap of rows of length 0 to T."""
    B, T, seed = draw(st.integers(1, 4)), draw(st.integers(1, 7)), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    rewards_BT, values_BT = torch.randn(2, B, T, generator=generator, dtype=torch.float64)
    lengths_B = torch.randint(0, T + 1, (B,), generator=generator)
    mask_BT = torch.arange(T) < lengths_B[:, None]
    if holes:
        mask_BT &= torch.rand(B, T, generator=generator) < 0.7
    bootstrap_B = torch.randn(B, generator=generator, dtype=torch.float64)
    return rewards_BT, values_BT, mask_BT, bootstrap_B


unit = st.floats(0, 1)


def real_tokens(tensor_BT, mask_BT):
    return [row[kept].tolist() for row, kept in zip(tensor_BT, mask_BT, strict=True)]


def temporal_differences(batch, gamma):
    """δ of each row's real tokens, in plain floats."""
    rewards_BT, values_BT, mask_BT, bootstrap_B = batch
    rows = zip(real_tokens(rewards_BT, mask_BT), real_tokens(values_BT, mask_BT), bootstrap_B.tolist(), strict=True)
    deltas = []
    for rewards, values, bootstrap in rows:
        following = [*values, bootstrap][1:]
        deltas.append([r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)])
    return deltas


def advantages_of(batch, *, gamma, lam):
    rewards_BT, values_BT, mask_BT, bootstrap_B = batch
    return generalized_advantages(rewards_BT, values_BT, mask_BT, gamma=gamma, lam=lam, bootstrap_B=bootstrap_B)


def assert_rows(actual_BT, mask_BT, expected):
    assert (actual_BT[~mask_BT] == 0).all()
    for actual, row in zip(real_tokens(actual_BT, mask_BT), expected, strict=True):
        assert actual == pytest.approx(row, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("holes", [False, True])
@settings(deadline=None)
@given(data=st.data(), gamma=unit, lam=unit)
def test_they_are_the_sums_of_their_definition(holes, data, gamma, lam):
    batch = data.draw(batches(holes=holes))
    expected = [
        [sum((gamma * lam) ** ahead * delta for ahead, delta in enumerate(row[t:])) for t in range(len(row))]
        for row in temporal_differences(batch, gamma)
    ]
    assert_rows(advantages_of(batch, gamma=gamma, lam=lam), batch[2], expected)


@settings(deadline=None)
@given(batches(), unit)
def test_with_lambda_one_they_are_discounted_returns_minus_values(batch, gamma):
    rewards_BT, values_BT, mask_BT, bootstrap_B = batch
    rows = zip(real_tokens(rewards_BT, mask_BT), real_tokens(values_BT, mask_BT), bootstrap_B.tolist(), strict=True)
    expected = [
        [
            sum(gamma**ahead * reward for ahead, reward in enumerate([*rewards[t:], bootstrap])) - values[t]
            for t in range(len(rewards))
        ]
        for rewards, values, bootstrap in rows
    ]
    assert_rows(advantages_of(batch, gamma=gamma, lam=1.0), mask_BT, expected)


@settings(deadline=None)
@given(batches(), unit)
def test_with_lambda_zero_they_are_the_temporal_differences(batch, gamma):
    assert_rows(advantages_of(batch, gamma=gamma, lam=0.0), batch[2], temporal_differences(batch, gamma))


@settings(deadline=None)
@given(batches(), unit, unit)
def test_truncation_differs_from_termination_by_the_discounted_share_of_the_bootstrap(batch, gamma, lam):
    rewards_BT, values_BT, mask_BT, bootstrap_B = batch
    ended_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, gamma=gamma, lam=lam)
    difference_BT = advantages_of(batch, gamma=gamma, lam=lam) - ended_BT
    for row, length in enumerate(mask_BT.sum(dim=1).tolist()):
        share = [(gamma * lam) ** (length - 1 - t) * gamma * float(bootstrap_B[row]) for t in range(length)]
        assert difference_BT[row, :length].tolist() == pytest.approx(share, rel=1e-12, abs=1e-12)


def test_no_bootstrap_is_a_bootstrap_of_zero():
    rewards_BT, values_BT = torch.arange(6.0).view(2, 3), torch.ones(2, 3)
    mask_BT = torch.ones(2, 3, dtype=torch.bool)
    none_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, gamma=0.9, lam=0.8)
    zero_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, gamma=0.9, lam=0.8, bootstrap_B=torch.zeros(2))
    assert torch.equal(none_BT, zero_BT)


def test_golden_numbers():
    rewards_BT = torch.tensor([[0, 0, 0, 0, 0, 1]], dtype=torch.float64)
    values_BT = torch.tensor([[0.1, 0.2, 0.15, 0.3, 0.5, 0.4]], dtype=torch.float64)
    mask_BT = torch.ones(1, 6, dtype=torch.bool)
    advantages_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, gamma=0.99, lam=0.95)
    golden = [0.701958129, 0.64216707, 0.737551377, 0.62791215, 0.4603, 0.6]
    assert advantages_BT[0].tolist() == pytest.approx(golden, abs=1e-9)


@pytest.mark.parametrize("garbage", GARBAGE)
@settings(deadline=None, max_examples=30)
@given(batch=batches(holes=True), extra=st.integers(0, 3))
def test_garbage_and_padding_change_no_bit(garbage, batch, extra):
    rewards_BT, values_BT, mask_BT, bootstrap_B = batch
    spoilt = [
        torch.nn.functional.pad(tensor.masked_fill(~mask_BT, garbage), (0, extra), value=garbage)
        for tensor in (rewards_BT, values_BT)
    ]
    padded_BT = torch.nn.functional.pad(mask_BT, (0, extra))
    spoilt_BT = generalized_advantages(*spoilt, padded_BT, gamma=0.9, lam=0.8, bootstrap_B=bootstrap_B)
    clean_BT = advantages_of(batch, gamma=0.9, lam=0.8)
    assert spoilt_BT[:, : mask_BT.shape[1]].numpy().tobytes() == clean_BT.numpy().tobytes()
    assert (spoilt_BT[:, mask_BT.shape[1] :] == 0).all()


@settings(deadline=None)
@given(batches())
def test_a_row_has_the_same_bits_alone_and_among_others(batch):
    together_BT = advantages_of(batch, gamma=0.9, lam=0.8)
    for row in range(len(together_BT)):
        alone = tuple(tensor[row : row + 1] for tensor in batch)
        assert torch.equal(advantages_of(alone, gamma=0.9, lam=0.8)[0], together_BT[row])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_no_tokens_give_no_advantages(shape):
    nothing, mask_BT = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    bootstrap_B = torch.ones(shape[0])
    assert generalized_advantages(nothing, nothing, mask_BT, gamma=1, lam=1, bootstrap_B=bootstrap_B).shape == shape


def test_no_gradient_flows_through_them_and_the_inputs_are_left_alone():
    rewards_BT, values_BT = torch.ones(1, 2), torch.ones(1, 2, requires_grad=True)
    bootstrap_B = torch.tensor([2.0])
    mask_BT = torch.tensor([[True, False]])
    advantages_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, gamma=1, lam=1, bootstrap_B=bootstrap_B)
    assert advantages_BT.tolist() == [[2.0, 0.0]]
    assert not advantages_BT.requires_grad
    assert (rewards_BT.tolist(), values_BT.tolist(), bootstrap_B.tolist()) == ([[1, 1]], [[1, 1]], [2])


@settings(deadline=None)
@given(batches(holes=True))
def test_rewards_to_go_are_the_sums_of_what_follows(batch):
    rewards_BT, _, mask_BT, _ = batch
    expected = [[sum(row[t:]) for t in range(len(row))] for row in real_tokens(rewards_BT, mask_BT)]
    assert_rows(rewards_to_go(rewards_BT, mask_BT), mask_BT, expected)
