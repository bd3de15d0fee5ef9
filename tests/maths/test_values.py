"""The critic's loss is the larger of two squares, per token; explained variance says how good the critic is."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.maths.values import clipped_value_loss, explained_variance

torch.set_num_threads(1)  # two sum in another order than one

GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30]


@st.composite
def batches(draw):
    """Values now, values before, returns and a mask with holes."""
    B, T, seed = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    old_BT, moves_BT, returns_BT = torch.randn(3, B, T, generator=generator, dtype=torch.float64)
    return old_BT + 0.5 * moves_BT, old_BT, returns_BT, torch.rand(B, T, generator=generator) < 0.7


def loss_and_gradient(values_BT, old_BT, returns_BT, mask_BT, clip):
    values_BT = values_BT.clone().requires_grad_()
    loss_BT = clipped_value_loss(values_BT, old_BT, returns_BT, mask_BT, clip=clip)
    return loss_BT.detach(), torch.autograd.grad(loss_BT.sum(), values_BT)[0]


def by_hand(value, old, target, clip):
    """The loss of one token, and its derivative by the value."""
    clipped = min(max(value, old - clip), old + clip)
    if (clipped - target) ** 2 > (value - target) ** 2:
        return (clipped - target) ** 2 / 2, 0.0
    return (value - target) ** 2 / 2, value - target


@pytest.mark.parametrize("clip", [0.2, 1.0, float("inf")])
@settings(deadline=None)
@given(batch=batches())
def test_every_token_has_the_value_and_gradient_worked_out_by_hand(clip, batch):
    values_BT, old_BT, returns_BT, mask_BT = batch
    loss_BT, gradient_BT = loss_and_gradient(*batch, clip)
    assert (loss_BT[~mask_BT] == 0).all()
    assert (gradient_BT[~mask_BT] == 0).all()
    for row, token in mask_BT.nonzero().tolist():
        numbers = (float(tensor[row, token]) for tensor in (values_BT, old_BT, returns_BT))
        loss, gradient = by_hand(*numbers, clip)
        assert float(loss_BT[row, token]) == pytest.approx(loss, rel=1e-12, abs=1e-12)
        assert float(gradient_BT[row, token]) == pytest.approx(gradient, rel=1e-12, abs=1e-12)


@settings(deadline=None)
@given(batches())
def test_without_a_clip_it_is_half_the_squared_error_to_the_bit(batch):
    values_BT, _, returns_BT, mask_BT = batch
    loss_BT, _ = loss_and_gradient(*batch, float("inf"))
    assert torch.equal(loss_BT[mask_BT], ((values_BT - returns_BT).square() / 2)[mask_BT])


@pytest.mark.parametrize("garbage", GARBAGE)
@settings(deadline=None, max_examples=30)
@given(batch=batches())
def test_garbage_in_masked_slots_changes_no_bit(garbage, batch):
    *tensors, mask_BT = batch
    spoilt = [tensor.masked_fill(~mask_BT, garbage) for tensor in tensors]
    outcomes = (loss_and_gradient(*tensors, mask_BT, 0.2), loss_and_gradient(*spoilt, mask_BT, 0.2))
    for clean_BT, actual_BT in zip(*outcomes, strict=True):
        assert actual_BT.numpy().tobytes() == clean_BT.numpy().tobytes()
    assert explained_variance(spoilt[0], spoilt[2], mask_BT) == explained_variance(tensors[0], tensors[2], mask_BT)


def test_gradients_flow_through_the_values_alone():
    tensors = [torch.full((2, 3), number, requires_grad=True) for number in (0.1, 0.0, 1.0)]
    clipped_value_loss(*tensors, torch.ones(2, 3, dtype=torch.bool), clip=0.2).sum().backward()
    assert [tensor.grad is not None for tensor in tensors] == [True, False, False]


@settings(deadline=None)
@given(batches())
def test_explained_variance_is_the_share_of_the_returns_variance_that_is_no_error(batch):
    values_BT, _, returns_BT, mask_BT = batch
    values, returns = values_BT[mask_BT].tolist(), returns_BT[mask_BT].tolist()
    if len(returns) > 1:
        errors = [target - value for value, target in zip(values, returns, strict=True)]
        expected = 1 - statistics.pvariance(errors) / statistics.pvariance(returns)
        assert explained_variance(values_BT, returns_BT, mask_BT) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_perfect_critic_explains_all_and_a_constant_one_nothing():
    returns_BT, mask_BT = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)), torch.ones(2, 3) > 0
    assert explained_variance(returns_BT, returns_BT, mask_BT) == 1.0
    assert explained_variance(torch.full((2, 3), 9.0), returns_BT, mask_BT) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("returns", [[0.1 + 0.2, 0.3, 0.3], [1.0, 1.0, 1.0]])
@pytest.mark.parametrize("real", [0, 1, 3])
def test_where_there_is_nothing_to_explain_it_is_zero_and_never_nan(returns, real):
    mask_BT = torch.arange(3)[None] < real
    assert explained_variance(torch.tensor([[0.0, 5.0, -5.0]]), torch.tensor([returns]), mask_BT) == 0.0
