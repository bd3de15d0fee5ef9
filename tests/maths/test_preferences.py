"""Losses on preference pairs equal their definitions and TRL's, in value and gradient, and stay finite far out."""

import math
import warnings
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proa.maths.preferences import bradley_terry, brier_score, calibration_error, correct, dpo_sigmoid, ipo, log_ratios

torch.set_num_threads(1)

EXACT = {"rtol": 1e-12, "atol": 1e-12}
BETA = 0.3


def numbers(seed, count=7, scale=4.0):
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(count, generator=generator, dtype=torch.float64) for _ in range(4)]


def lengths(seed, count=7):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 9, (count,), generator=generator).double() for _ in range(2)]


def with_gradients(function, *inputs):
    """Losses per pair, and the gradients of their weighted sum by every input."""
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    loss_N = function(*inputs)
    weights_N = torch.arange(1, len(loss_N) + 1, dtype=torch.float64)
    return loss_N.detach(), torch.autograd.grad((weights_N * loss_N).sum(), inputs)


def assert_loss(function, inputs, by_hand):
    """`by_hand(i)` is the loss of pair i and its derivatives by the inputs, in plain floats."""
    loss_N, gradients = with_gradients(function, *inputs)
    for pair in range(len(loss_N)):
        loss, *derivatives = by_hand(*(float(tensor[pair]) for tensor in inputs))
        assert float(loss_N[pair]) == pytest.approx(loss, rel=1e-12, abs=1e-12)
        for gradient, derivative in zip(gradients, derivatives, strict=True):
            assert float(gradient[pair]) == pytest.approx((pair + 1) * derivative, rel=1e-12, abs=1e-12)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@given(st.integers(0, 2**31))
def test_bradley_terry_is_the_likelihood_of_the_preference(seed):
    def by_hand(chosen, rejected, margin):
        distance = chosen - rejected - margin
        slope = sigmoid(distance) - 1
        return -math.log(sigmoid(distance)), slope, -slope, -slope

    assert_loss(lambda *scores: bradley_terry(*scores).loss_N, numbers(seed)[:3], by_hand)


def test_without_margins_they_are_0():
    chosen_N, rejected_N, _, _ = numbers(0)
    assert torch.equal(
        bradley_terry(chosen_N, rejected_N).loss_N,
        bradley_terry(chosen_N, rejected_N, torch.zeros_like(chosen_N)).loss_N,
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@given(seed=st.integers(0, 2**31))
def test_dpo_is_its_definition(smoothing, seed):
    def by_hand(chosen, rejected):
        right = sigmoid(BETA * (chosen - rejected))
        loss = -(1 - smoothing) * math.log(right) - smoothing * math.log(1 - right)
        slope = BETA * (right - (1 - smoothing))
        return loss, slope, -slope

    assert_loss(
        lambda *ratios: dpo_sigmoid(*ratios, beta=BETA, label_smoothing=smoothing).loss_N, numbers(seed)[:2], by_hand
    )


@given(st.integers(0, 2**31))
def test_ipo_is_its_definition_with_means_over_tokens(seed):
    chosen_tokens_N, rejected_tokens_N = lengths(seed)
    by_pair = iter(zip(chosen_tokens_N.tolist(), rejected_tokens_N.tolist(), strict=True))

    def by_hand(chosen, rejected):
        chosen_tokens, rejected_tokens = next(by_pair)
        off = chosen / chosen_tokens - rejected / rejected_tokens - 1 / (2 * BETA)
        return off**2, 2 * off / chosen_tokens, -2 * off / rejected_tokens

    assert_loss(
        lambda *ratios: ipo(*ratios, chosen_tokens_N, rejected_tokens_N, beta=BETA).loss_N, numbers(seed)[:2], by_hand
    )


def test_numbers_worked_by_hand():
    one = bradley_terry(torch.tensor([1.0]).double(), torch.tensor([0.0]).double())
    assert one.loss_N.item() == pytest.approx(0.31326168751822286, abs=1e-15)  # log(1 + 1/e)
    half = bradley_terry(*(torch.tensor([number]).double() for number in (1.0, 0.0, 0.5)))
    assert half.loss_N.item() == pytest.approx(0.4740769841801067, abs=1e-15)  # log(1 + e^-0.5)
    ratios = torch.tensor([2.0]).double(), torch.tensor([-3.0]).double()
    dpo = dpo_sigmoid(*ratios, beta=0.1)
    assert dpo.loss_N.item() == pytest.approx(0.4740769841801067, abs=1e-15)
    assert (dpo.chosen_rewards_N.item(), dpo.rejected_rewards_N.item()) == pytest.approx((0.2, -0.3))
    assert dpo.margins_N.item() == pytest.approx(0.5)
    smoothed = dpo_sigmoid(*ratios, beta=0.1, label_smoothing=0.1)
    assert smoothed.loss_N.item() == pytest.approx(0.5240769841801067, abs=1e-15)  # 0.9 · 0.474… + 0.1 · 0.974…
    tokens = torch.tensor([4.0]).double(), torch.tensor([2.0]).double()
    assert ipo(*ratios, *tokens, beta=0.1).loss_N.item() == pytest.approx(9.0)  # (2/4 + 3/2 − 5)²
    assert ipo(*ratios, *tokens, beta=0.1).margins_N.item() == pytest.approx(0.5)


@pytest.fixture(scope="module")
def trl():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL's many imports, not ours to mend
        try:
            from trl.trainer.dpo_trainer import DPOTrainer
            from trl.trainer.reward_trainer import RewardTrainer
        except ImportError as error:
            pytest.skip(f"needs trl as oracle, which is no dependency of proa: {error}")
    return SimpleNamespace(dpo=DPOTrainer, reward=RewardTrainer)


ACCELERATOR = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)


def trl_dpo(trainer, loss_type, ratios, tokens, *, smoothing=0.0):
    """Loss, gradients and metrics of `DPOTrainer._compute_loss`, called unbound on a model that says these ratios."""
    inputs = [tensor.clone().requires_grad_() for tensor in ratios]
    log_probs_B = torch.cat(inputs)  # the reference says 0
    B, S = len(log_probs_B), int(max(tokens[0].max(), tokens[1].max())) + 1
    # The whole sum stands at the first token; how many tokens there are is the mask's to say.
    per_token_BS = torch.cat([log_probs_B[:, None], torch.zeros(B, S - 2, dtype=torch.float64)], dim=1)
    mask_BS = (torch.arange(S) >= 1) & (torch.arange(S) <= torch.cat(list(tokens))[:, None])
    zeros = torch.zeros(B, S - 1, dtype=torch.float64)
    outputs = SimpleNamespace(log_probs=per_token_BS, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    stub = SimpleNamespace(
        _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1, accelerator=ACCELERATOR,
        aux_loss_enabled=False, beta=BETA, f_divergence_type="reverse_kl", label_smoothing=smoothing, ld_alpha=None,
        loss_types=[loss_type], loss_weights=[1.0], model=SimpleNamespace(training=True),
        precompute_ref_logps=True, use_weighting=False,
    )  # fmt: skip
    nothing = torch.zeros(B // 2, dtype=torch.float64)
    batch = {
        "input_ids": torch.zeros(B, S, dtype=torch.long),
        "attention_mask": torch.ones(B, S, dtype=torch.long),
        "completion_mask": mask_BS.long(),
        "ref_chosen_logps": nothing,
        "ref_rejected_logps": nothing,
    }
    loss = trainer._compute_loss(stub, lambda **_: outputs, batch, False)
    return loss.detach(), torch.autograd.grad(loss, inputs), stub._metrics["train"]


def mean_with_gradients(function, ratios):
    inputs = [tensor.clone().requires_grad_() for tensor in ratios]
    outcome = function(*inputs)
    loss = outcome.loss_N.mean()
    return loss.detach(), torch.autograd.grad(loss, inputs), outcome


OURS = {
    "sigmoid": lambda chosen_N, rejected_N, tokens: dpo_sigmoid(chosen_N, rejected_N, beta=BETA),
    "ipo": lambda chosen_N, rejected_N, tokens: ipo(chosen_N, rejected_N, *tokens, beta=BETA),
}


@pytest.mark.parametrize("loss_type", OURS)
def test_value_gradient_and_rewards_are_trls(trl, loss_type):
    for seed in range(20):
        ratios, tokens = numbers(seed)[:2], lengths(seed)
        theirs, their_gradients, metrics = trl_dpo(trl.dpo, loss_type, ratios, tokens)
        ours, our_gradients, outcome = mean_with_gradients(
            lambda *inputs, tokens=tokens: OURS[loss_type](*inputs, tokens), ratios
        )
        torch.testing.assert_close(ours, theirs, **EXACT)
        torch.testing.assert_close(our_gradients, their_gradients, **EXACT)
        assert outcome.margins_N.mean().item() == pytest.approx(metrics["rewards/margins"][0], rel=1e-12)
        assert outcome.chosen_rewards_N.mean().item() == pytest.approx(metrics["rewards/chosen"][0], rel=1e-12)
        assert outcome.correct_N.mean().item() == pytest.approx(metrics["rewards/accuracies"][0], rel=1e-6)


def test_label_smoothing_is_trls(trl):
    # TRL smooths labels in AOT, which sorts the pairs first: of one pair that is conservative DPO.
    for seed in range(20):
        ratios, tokens = [tensor[:1] for tensor in numbers(seed)[:2]], [tensor[:1] for tensor in lengths(seed)]
        theirs, their_gradients, _ = trl_dpo(trl.dpo, "aot", ratios, tokens, smoothing=0.15)
        ours, our_gradients, _ = mean_with_gradients(
            lambda *inputs: dpo_sigmoid(*inputs, beta=BETA, label_smoothing=0.15), ratios
        )
        torch.testing.assert_close(ours, theirs, **EXACT)
        torch.testing.assert_close(our_gradients, their_gradients, **EXACT)


@pytest.mark.parametrize("with_margin", [True, False])
def test_bradley_terry_is_trls(trl, with_margin):
    for seed in range(20):
        *scores, margins_N, _ = numbers(seed)
        inputs = [tensor.clone().requires_grad_() for tensor in scores]
        stub = SimpleNamespace(
            _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1, accelerator=ACCELERATOR,
            args=SimpleNamespace(center_rewards_coefficient=None), model=SimpleNamespace(training=True),
        )  # fmt: skip
        batch = {"attention_mask": torch.ones(2, 2)} | ({"margin": margins_N} if with_margin else {})
        outputs = SimpleNamespace(logits=torch.cat(inputs)[:, None])
        theirs = trl.reward.compute_loss(stub, lambda outputs=outputs, **_: outputs, batch)
        their_gradients = torch.autograd.grad(theirs, inputs)
        ours, our_gradients, outcome = mean_with_gradients(
            lambda *s, m=margins_N: bradley_terry(*s, m if with_margin else None), scores
        )
        torch.testing.assert_close(ours, theirs.detach(), **EXACT)
        torch.testing.assert_close(our_gradients, their_gradients, **EXACT)
        assert outcome.margins_N.mean().item() == pytest.approx(stub._metrics["train"]["margin"][0], rel=1e-12)


def test_another_loss_is_not_taken_for_trls(trl):
    """The control: summed instead of averaged log-ratios are not TRL's IPO."""
    ratios, tokens = numbers(0)[:2], lengths(0)
    theirs, _, _ = trl_dpo(trl.dpo, "ipo", ratios, tokens)
    ones = [torch.ones_like(tensor) for tensor in tokens]
    assert abs(ipo(*ratios, *ones, beta=BETA).loss_N.mean() - theirs) > 0.1


@pytest.mark.parametrize("distance", [-1e4, -800.0, 800.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_from_0_loss_and_gradient_are_finite_and_right(distance, dtype):
    chosen_N = torch.tensor([distance], dtype=dtype, requires_grad=True)
    rejected_N = torch.zeros(1, dtype=dtype)
    for loss_N in (bradley_terry(chosen_N, rejected_N).loss_N, dpo_sigmoid(chosen_N, rejected_N, beta=1.0).loss_N):
        (gradient_N,) = torch.autograd.grad(loss_N.sum(), chosen_N)
        assert loss_N.item() == max(0.0, -distance)
        assert gradient_N.item() == (-1.0 if distance < 0 else 0.0)


def test_the_reference_is_a_constant():
    policy_N, reference_N = (tensor.requires_grad_() for tensor in numbers(0)[:2])
    log_ratios(policy_N, reference_N).sum().backward()
    assert reference_N.grad is None
    assert torch.equal(policy_N.grad, torch.ones(7).double())


def test_without_a_reference_the_ratio_is_the_policys_own_log_probability():
    policy_N = numbers(0)[0]
    assert torch.equal(log_ratios(policy_N, None), policy_N)


def test_rewards_carry_no_gradient():
    ratios = [tensor.requires_grad_() for tensor in numbers(0)[:2]]
    for outcome in (
        bradley_terry(*ratios),
        dpo_sigmoid(*ratios, beta=BETA),
        ipo(*ratios, *lengths(0), beta=BETA),
    ):
        assert outcome.loss_N.requires_grad
        assert not outcome.margins_N.requires_grad


def test_a_tie_is_half_right_and_nan_is_not_right():
    margins_N = torch.tensor([1.0, -1.0, 0.0, -0.0, math.inf, math.nan])
    assert correct(margins_N).tolist() == [1.0, 0.0, 0.5, 0.5, 1.0, 0.0]


@pytest.mark.parametrize("beta", [0.0, -0.1, math.inf, math.nan])
def test_a_beta_that_is_none_is_refused(beta):
    ratios = numbers(0)[:2]
    with pytest.raises(ValueError, match="beta must be a number above 0"):
        dpo_sigmoid(*ratios, beta=beta)
    with pytest.raises(ValueError, match="beta must be a number above 0"):
        ipo(*ratios, *lengths(0), beta=beta)


@pytest.mark.parametrize("smoothing", [-0.1, 0.5, 1.0, math.nan])
def test_a_label_smoothing_that_would_turn_preferences_round_is_refused(smoothing):
    with pytest.raises(ValueError, match="label_smoothing must be from 0 to below 0.5"):
        dpo_sigmoid(*numbers(0)[:2], beta=BETA, label_smoothing=smoothing)


def loop_calibration(margins, bins):
    members = [[] for _ in range(bins)]
    for margin in margins:
        confidence = sigmoid(abs(margin))
        right = 0.5 if margin == 0 else float(margin > 0)
        place = next(b for b in range(bins) if b == bins - 1 or confidence < 0.5 + (b + 1) * 0.5 / bins)
        members[place].append((right, confidence))
    error = 0.0
    for member in members:
        if member:
            accuracy = sum(right for right, _ in member) / len(member)
            confidence = sum(confidence for _, confidence in member) / len(member)
            error += len(member) / len(margins) * abs(accuracy - confidence)
    return error


@pytest.mark.parametrize("bins", [1, 3, 10])
@given(seed=st.integers(0, 2**31))
def test_calibration_error_is_its_definition(bins, seed):
    margins_N = numbers(seed, count=40, scale=2.0)[0]
    expected = loop_calibration(margins_N.tolist(), bins)
    assert calibration_error(margins_N, bins=bins).item() == pytest.approx(expected, abs=1e-12)


def test_who_is_as_sure_as_right_has_no_calibration_error():
    margin = math.log(3)  # σ = 0.75
    margins_N = torch.tensor([margin, margin, margin, -margin], dtype=torch.float64)
    assert calibration_error(margins_N).item() == pytest.approx(0.0, abs=1e-12)
    assert calibration_error(-margins_N).item() == pytest.approx(0.5, abs=1e-12)
    assert brier_score(margins_N).item() == pytest.approx((3 * 0.25**2 + 0.75**2) / 4, abs=1e-12)


def test_nan_margins_are_left_out_and_none_at_all_give_nan():
    margins_N = torch.tensor([1.0, -0.5, 2.0])
    with_nan_N = torch.tensor([1.0, math.nan, -0.5, 2.0])
    assert torch.equal(calibration_error(with_nan_N), calibration_error(margins_N))
    assert torch.equal(brier_score(with_nan_N), brier_score(margins_N))
    for nothing_N in (torch.tensor([math.nan]), torch.tensor([])):
        assert calibration_error(nothing_N).isnan()
        assert brier_score(nothing_N).isnan()


def test_infinite_margins_are_certain():
    assert calibration_error(torch.tensor([math.inf])).item() == 0.0
    assert calibration_error(torch.tensor([-math.inf])).item() == 1.0
    assert brier_score(torch.tensor([math.inf, -math.inf])).item() == 0.5
