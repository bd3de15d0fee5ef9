"""Losses, ratios, KL estimators, weights and shaping equal their definitions, and masked slots cannot touch them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.maths.importance import probability_ratio, sequence_ratio, truncated_importance
from proa.maths.kl import ESTIMATORS, k1, k2, k3
from proa.maths.losses import clipped_ratio_loss, clipped_weight_loss
from proa.maths.reductions import constant_divisor, sequence_mean, token_mean
from proa.maths.shaping import overlong_penalty

torch.set_num_threads(1)  # two sum in another order than one

GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30, -1e30]


@st.composite
def tokens(draw):
    """Log-probabilities of two policies, advantages and a mask with holes."""
    B, T, seed = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    log_probs_BT = -3 * torch.rand(B, T, generator=generator, dtype=torch.float64)
    other_BT = log_probs_BT + 0.5 * torch.randn(B, T, generator=generator, dtype=torch.float64)
    advantages_BT = torch.randn(B, T, generator=generator, dtype=torch.float64)
    mask_BT = torch.rand(B, T, generator=generator) < 0.7
    return log_probs_BT, other_BT, advantages_BT, mask_BT


def surrogate(log_probs_BT, old_BT, advantages_BT, mask_BT):
    ratio_BT = probability_ratio(log_probs_BT, old_BT, mask_BT)
    return clipped_ratio_loss(ratio_BT, advantages_BT, mask_BT, clip_low=0.2, clip_high=0.28)


def weight_loss(log_probs_BT, old_BT, advantages_BT, mask_BT):
    ratio_BT = probability_ratio(log_probs_BT, old_BT, mask_BT)
    return clipped_weight_loss(log_probs_BT, ratio_BT, advantages_BT, mask_BT, clip_low=0.2, clip_high=0.28)


def without_advantages(function):
    return lambda log_probs_BT, other_BT, _advantages_BT, mask_BT: function(log_probs_BT, other_BT, mask_BT)


FUNCTIONS = {
    "surrogate": surrogate,
    "weight_loss": weight_loss,
    "ratio": without_advantages(probability_ratio),
    **{name: without_advantages(estimator) for name, estimator in ESTIMATORS.items()},
}


def by_hand(name, log_prob, other, advantage):
    """Value and derivative by the log-probability, of one token, in plain floats."""
    if name == "k1":
        return log_prob - other, 1.0
    if name == "k2":
        return (log_prob - other) ** 2 / 2, log_prob - other
    if name == "k3":
        return math.exp(other - log_prob) - (other - log_prob) - 1, 1 - math.exp(other - log_prob)
    ratio = math.exp(log_prob - other)
    if name == "ratio":
        return ratio, ratio
    clipped = min(max(ratio, 0.8), 1.28)
    if name == "weight_loss":
        return -clipped * advantage * log_prob, -clipped * advantage
    if ratio * advantage <= clipped * advantage:
        return -ratio * advantage, -ratio * advantage
    return -clipped * advantage, 0.0


def value_and_gradient(function, log_probs_BT, *others):
    log_probs_BT = log_probs_BT.clone().requires_grad_()
    value_BT = function(log_probs_BT, *others)
    (gradient_BT,) = torch.autograd.grad(value_BT.sum(), log_probs_BT)
    return value_BT.detach(), gradient_BT


def same_bits(a, b):
    return a.numpy().tobytes() == b.numpy().tobytes()  # -0.0 is not 0.0 here


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(deadline=None)
@given(batch=tokens())
def test_every_token_has_the_value_and_gradient_worked_out_by_hand(name, batch):
    value_BT, gradient_BT = value_and_gradient(FUNCTIONS[name], *batch)
    log_probs_BT, other_BT, advantages_BT, mask_BT = batch
    for row, token in mask_BT.nonzero().tolist():
        values = (float(tensor[row, token]) for tensor in (log_probs_BT, other_BT, advantages_BT))
        value, gradient = by_hand(name, *values)
        assert float(value_BT[row, token]) == pytest.approx(value, rel=1e-12, abs=1e-12)
        assert float(gradient_BT[row, token]) == pytest.approx(gradient, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(deadline=None)
@given(batch=tokens())
def test_masked_slots_are_neutral_and_have_no_gradient(name, batch):
    value_BT, gradient_BT = value_and_gradient(FUNCTIONS[name], *batch)
    mask_BT = batch[-1]
    assert (value_BT[~mask_BT] == (1 if name == "ratio" else 0)).all()
    assert (gradient_BT[~mask_BT] == 0).all()


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", FUNCTIONS)
@settings(deadline=None, max_examples=30)
@given(batch=tokens())
def test_garbage_in_masked_slots_changes_no_bit(name, garbage, batch):
    *tensors, mask_BT = batch
    spoilt = [tensor.masked_fill(~mask_BT, garbage) for tensor in tensors]
    clean_value, clean_gradient = value_and_gradient(FUNCTIONS[name], *batch)
    value, gradient = value_and_gradient(FUNCTIONS[name], *spoilt, mask_BT)
    assert same_bits(value, clean_value)
    assert same_bits(gradient, clean_gradient)


def test_the_policy_itself_as_old_gives_ratio_one_and_the_policy_gradient():
    log_probs_BT = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    loss_BT = surrogate(log_probs_BT, log_probs_BT, torch.tensor([[2.0, -3.0]]), mask_BT)
    assert loss_BT.tolist() == [[-2.0, 3.0]]
    assert torch.autograd.grad(loss_BT.sum(), log_probs_BT)[0].tolist() == [[-2.0, 3.0]]


@settings(deadline=None)
@given(tokens())
def test_the_sequence_ratio_is_the_geometric_mean_with_each_tokens_own_gradient(batch):
    log_probs_BT, old_BT, _, mask_BT = batch
    ratio_BT, gradient_BT = value_and_gradient(sequence_ratio, log_probs_BT, old_BT, mask_BT)
    assert (ratio_BT[~mask_BT] == 1).all()
    assert (gradient_BT[~mask_BT] == 0).all()
    for row, kept in enumerate(mask_BT):
        log_ratios = (log_probs_BT - old_BT)[row, kept].tolist()
        expected = [math.exp(sum(log_ratios) / len(log_ratios))] * len(log_ratios) if log_ratios else []
        assert ratio_BT[row, kept].tolist() == pytest.approx(expected, rel=1e-12)
        assert gradient_BT[row, kept].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("garbage", GARBAGE)
@settings(deadline=None, max_examples=30)
@given(batch=tokens(), extra=st.integers(0, 12))
def test_garbage_and_padding_change_no_bit_of_the_sequence_ratio(garbage, batch, extra):
    log_probs_BT, old_BT, _, mask_BT = batch
    spoilt = [
        torch.nn.functional.pad(tensor.masked_fill(~mask_BT, garbage), (0, extra), value=garbage)
        for tensor in (log_probs_BT, old_BT)
    ]
    padded_BT = torch.nn.functional.pad(mask_BT, (0, extra))
    clean = value_and_gradient(sequence_ratio, log_probs_BT, old_BT, mask_BT)
    for clean_BT, actual_BT in zip(clean, value_and_gradient(sequence_ratio, *spoilt, padded_BT), strict=True):
        assert same_bits(actual_BT[:, : mask_BT.shape[1]].contiguous(), clean_BT)


def test_padding_does_not_change_the_order_in_which_a_sequence_ratio_is_summed():
    generator = torch.Generator().manual_seed(0)
    log_probs_BT, old_BT = torch.randn(2, 64, 37, generator=generator)
    mask_BT = torch.ones(64, 37, dtype=torch.bool)
    padded = [torch.nn.functional.pad(tensor, (0, 91)) for tensor in (log_probs_BT, old_BT, mask_BT)]
    assert torch.equal(sequence_ratio(*padded)[:, :37], sequence_ratio(log_probs_BT, old_BT, mask_BT))
    plain_B = (log_probs_BT - old_BT).sum(dim=1)  # the control: a plain sum does change
    assert not torch.equal((padded[0] - padded[1]).sum(dim=1), plain_B)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 3)])
def test_the_sequence_ratio_of_nothing_is_one(shape):
    nothing_BT = torch.full(shape, -1.0)
    assert torch.equal(sequence_ratio(nothing_BT, nothing_BT, torch.zeros(shape, dtype=torch.bool)), torch.ones(shape))


def test_the_policy_itself_as_old_gives_a_sequence_ratio_of_exactly_one():
    log_probs_BT = torch.tensor([[-0.1, -2.3, -7.7]])
    assert sequence_ratio(log_probs_BT, log_probs_BT, torch.ones(1, 3, dtype=torch.bool)).tolist() == [[1.0] * 3]


@settings(deadline=None)
@given(tokens(), st.floats(0.5, 3))
def test_truncated_importance_is_the_ratio_up_to_the_cap_without_gradient(batch, cap):
    trainer_BT, sampler_BT, _, mask_BT = batch
    weights_BT = truncated_importance(trainer_BT.clone().requires_grad_(), sampler_BT, mask_BT, cap=cap)
    assert not weights_BT.requires_grad
    for row, token in mask_BT.nonzero().tolist():
        ratio = math.exp(float(trainer_BT[row, token]) - float(sampler_BT[row, token]))
        assert float(weights_BT[row, token]) == pytest.approx(min(ratio, cap), rel=1e-12)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_truncated_importance_is_one_where_masked_whatever_is_there(garbage):
    mask_BT = torch.tensor([[True, False]])
    tensor_BT = torch.tensor([[-1.0, garbage]])
    assert truncated_importance(tensor_BT, tensor_BT, mask_BT, cap=2.0).tolist() == [[1.0, 1.0]]


def expected_gradient(estimator, logits_V, reference_V):
    """The mean over π of the estimator's gradient by the logits: every token of a small vocabulary, no sampling."""
    logits_V = logits_V.clone().requires_grad_()
    log_probs_V = logits_V.log_softmax(-1)
    value_1V = estimator(log_probs_V[None], reference_V[None], torch.ones(1, len(logits_V), dtype=torch.bool))
    probabilities_V = log_probs_V.detach().exp()
    return torch.autograd.grad((probabilities_V * value_1V[0]).sum(), logits_V)[0]


def test_the_expected_gradients_of_the_kl_estimators_are_those_of_their_docstring():
    generator = torch.Generator().manual_seed(0)
    logits_V, reference_V = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    reference_V = reference_V.log_softmax(-1)
    variable_V = logits_V.clone().requires_grad_()
    policy_V = variable_V.log_softmax(-1)
    reverse = (policy_V.exp() * (policy_V - reference_V)).sum()
    forward = (reference_V.exp() * (reference_V - policy_V)).sum()
    (reverse_V,) = torch.autograd.grad(reverse, variable_V, retain_graph=True)
    (forward_V,) = torch.autograd.grad(forward, variable_V)
    for estimator, gradient_V in ((k1, torch.zeros_like(logits_V)), (k2, reverse_V), (k3, forward_V)):
        actual_V = expected_gradient(estimator, logits_V, reference_V)
        torch.testing.assert_close(actual_V, gradient_V, rtol=1e-12, atol=1e-12)


def test_k3_keeps_its_digits_where_the_policies_have_hardly_parted():
    difference = 1e-4
    kl = k3(torch.zeros(1, 1), torch.full((1, 1), difference), torch.ones(1, 1, dtype=torch.bool))
    assert float(kl) == pytest.approx(difference**2 / 2, rel=1e-2)


REDUCTIONS = [sequence_mean, token_mean, lambda mask_BT, **how: constant_divisor(mask_BT, divisor=9, **how)]


@settings(deadline=None)
@given(tokens())
def test_weights_are_the_means_they_are_named_for(batch):
    values_BT, _, _, mask_BT = batch
    rows = [
        [v for v, kept in zip(*row, strict=True) if kept]
        for row in zip(values_BT.tolist(), mask_BT.tolist(), strict=True)
    ]
    B, total = len(rows), sum(map(len, rows))
    expected = [
        sum(sum(row) / len(row) for row in rows if row) / B,
        sum(map(sum, rows)) / total if total else 0.0,
        sum(map(sum, rows)) / (B * 9),
    ]
    for reduction, value in zip(REDUCTIONS, expected, strict=True):
        weights_BT = reduction(mask_BT, dtype=torch.float64)
        assert float((weights_BT * values_BT).sum()) == pytest.approx(value, rel=1e-12, abs=1e-12)
        assert (weights_BT[~mask_BT] == 0).all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 3)])
def test_nothing_to_train_on_gives_zeros(reduction, shape):
    weights_BT = reduction(torch.zeros(shape, dtype=torch.bool))
    assert torch.equal(weights_BT, torch.zeros(shape))


def test_an_empty_completion_counts_as_a_sequence():
    mask_BT = torch.tensor([[True, True], [False, False]])
    assert sequence_mean(mask_BT).tolist() == [[0.25, 0.25], [0.0, 0.0]]


def test_a_divisor_of_zero_is_refused():
    with pytest.raises(ValueError, match="divisor must be more than 0"):
        constant_divisor(torch.ones(1, 1, dtype=torch.bool), divisor=0)


@given(st.integers(0, 300), st.integers(1, 200), st.integers(1, 200))
@settings(deadline=None)
def test_the_overlong_penalty_is_the_papers_three_cases(length, max_length, buffer):
    buffer = min(buffer, max_length)
    if length <= max_length - buffer:
        expected = 0.0
    elif length <= max_length:
        expected = ((max_length - buffer) - length) / buffer
    else:
        expected = -1.0
    penalty_B = overlong_penalty(torch.tensor([length], dtype=torch.float64), max_length=max_length, buffer=buffer)
    assert float(penalty_B) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("buffer", [0, -1, 11])
def test_a_buffer_that_cannot_be_is_refused(buffer):
    with pytest.raises(ValueError, match="1 to 10 tokens"):
        overlong_penalty(torch.tensor([1]), max_length=10, buffer=buffer)


def test_a_token_that_can_come_by_neither_policy_is_no_distance_and_one_that_can_by_one_is_infinitely_far():
    impossible, possible = -math.inf, -1.0
    mask_BT = torch.ones(1, 3, dtype=torch.bool)
    log_probs_BT = torch.tensor([[impossible, possible, possible]], requires_grad=True)
    reference_BT = torch.tensor([[impossible, impossible, possible]])
    for estimator in ESTIMATORS.values():
        value_BT = estimator(log_probs_BT, reference_BT, mask_BT)
        assert value_BT.tolist() == [[0.0, math.inf, 0.0]]
        (gradient_BT,) = torch.autograd.grad(value_BT[0, 0], log_probs_BT)
        assert gradient_BT[0, 0] == 0
