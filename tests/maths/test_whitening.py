"""Whitening takes its mean and spread from the real tokens of the whole batch, and from nothing else."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.maths.whitening import nearly_constant, whiten

torch.set_num_threads(1)  # two sum in another order than one

GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30]


@st.composite
def batches(draw):
    """Values at least 1 apart, so that dividing by their spread costs no digits, and a mask with holes."""
    B, T, seed = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    steps_BT = torch.randperm(B * T, generator=generator).view(B, T)
    values_BT = 2 * steps_BT - 5 + torch.rand(B, T, generator=generator, dtype=torch.float64)
    return values_BT, torch.rand(B, T, generator=generator) < 0.7


@pytest.mark.parametrize("shift_mean", [True, False])
@settings(deadline=None)
@given(batch=batches(), epsilon=st.sampled_from([1e-8, 0.1]))
def test_it_is_the_distance_from_the_mean_in_standard_deviations(shift_mean, batch, epsilon):
    values_BT, mask_BT = batch
    values = values_BT[mask_BT].tolist()
    whitened_BT = whiten(values_BT, mask_BT, epsilon=epsilon, shift_mean=shift_mean)
    assert (whitened_BT[~mask_BT] == 0).all()
    if not values:
        return
    mean, std = statistics.fmean(values), math.sqrt(statistics.pvariance(values) + epsilon)
    expected = [(value - mean) / std + (0 if shift_mean else mean) for value in values]
    assert whitened_BT[mask_BT].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(deadline=None)
@given(batches())
def test_the_mean_becomes_zero_and_the_spread_one(batch):
    whitened_N = whiten(*batch)[batch[1]]
    if len(whitened_N) > 1:
        assert float(whitened_N.mean()) == pytest.approx(0, abs=1e-12)
        assert float(whitened_N.var(correction=0)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "values", [[0.1 + 0.2, 0.3, 0.3], [0.1] * 7, [1e6 + 0.1, 1e6 + 0.2], [0.1 + 0.2 - 0.3, 0.0], [-3.0], [0.0]]
)
def test_equal_values_and_a_single_one_give_exactly_zero(values, dtype):
    values_BT = torch.tensor([[*values, 5.0]], dtype=dtype)
    mask_BT = torch.tensor([[True] * len(values) + [False]])
    assert whiten(values_BT, mask_BT).tolist() == [[0.0] * (len(values) + 1)]


def test_without_the_shift_equal_values_stay_what_they_are():
    assert (
        whiten(torch.full((2, 2), 3.0), torch.ones(2, 2, dtype=torch.bool), shift_mean=False).tolist() == [[3, 3]] * 2
    )


def test_a_small_but_real_difference_is_not_taken_for_noise():
    values_N = torch.tensor([0.5, 0.501])
    assert not nearly_constant(values_N)
    assert whiten(values_N[None], torch.ones(1, 2, dtype=torch.bool)).tolist()[0] == pytest.approx(
        [-0.98, 0.98], abs=0.01
    )


@pytest.mark.parametrize("garbage", GARBAGE)
@settings(deadline=None, max_examples=30)
@given(batch=batches(), extra=st.integers(0, 9))
def test_garbage_and_padding_change_no_bit(garbage, batch, extra):
    values_BT, mask_BT = batch
    spoilt_BT = torch.nn.functional.pad(values_BT.masked_fill(~mask_BT, garbage), (0, extra), value=garbage)
    actual_BT = whiten(spoilt_BT, torch.nn.functional.pad(mask_BT, (0, extra)))
    assert actual_BT[:, : mask_BT.shape[1]].numpy().tobytes() == whiten(values_BT, mask_BT).numpy().tobytes()
    assert (actual_BT[:, mask_BT.shape[1] :] == 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_real_value_that_is_no_number_is_not_hidden(bad):
    whitened_BT = whiten(torch.tensor([[bad, 1.0, 2.0]]), torch.tensor([[True, True, True]]))
    assert not whitened_BT.isfinite().any()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 3)])
def test_nothing_real_gives_zeros(shape):
    assert torch.equal(whiten(torch.full(shape, 7.0), torch.zeros(shape, dtype=torch.bool)), torch.zeros(shape))


def test_no_gradient_flows_through_it():
    assert not whiten(torch.eye(3, requires_grad=True), torch.ones(3, 3, dtype=torch.bool)).requires_grad
