"""What tells GSPO, CISPO and decoupled PPO from the others, in the terms of their papers."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.batches import batches, credit, loss_and_gradients, random_batch, token_loss

from proa.algorithms import CISPO, DAPO, GSPO, DecoupledPPO, ReinforcePlusPlus, ReinforcePlusPlusBaseline
from proa.maths.importance import truncated_importance


def without_importance(batch):
    return replace(batch, importance_BT=torch.ones_like(batch.importance_BT))


@pytest.mark.parametrize("clips", [{}, {"clip_low": 0.1, "clip_high": 0.15}])
@settings(deadline=None, max_examples=50)
@given(batch=batches)
def test_gspo_per_token_is_the_clipped_loss_of_whole_sequences(clips, batch):
    """Value and gradient of −1/B Σ min(s A, clip(s) A), differentiated as it stands, without stopping any gradient."""
    algorithm = GSPO(**clips)
    log_probs_BT = batch.log_probs_BT.clone().requires_grad_()
    lengths_B = batch.lengths_B.clamp(min=1)
    log_ratio_B = ((log_probs_BT - batch.old_log_probs_BT) * batch.mask_BT).sum(dim=1) / lengths_B
    ratio_B, advantages_B = log_ratio_B.exp(), algorithm.advantages(batch.rewards_B, batch.groups_B)
    advantages_B = advantages_B * (batch.lengths_B > 0)  # an empty completion has no tokens to carry a loss
    clipped_B = ratio_B.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    expected = -torch.minimum(ratio_B * advantages_B, clipped_B * advantages_B).mean()
    (expected_gradient_BT,) = torch.autograd.grad(expected, log_probs_BT)
    loss, gradient_BT, _ = loss_and_gradients(algorithm, without_importance(batch))
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient_BT, expected_gradient_BT, rtol=1e-12, atol=1e-12)


def test_gspo_clips_whole_completions_and_says_so_at_each_of_their_tokens():
    batch = random_batch(0, groups=4, size=4, T=8)
    advantages_BT = credit(GSPO(), batch).advantages_BT
    statistics = token_loss(GSPO(), batch, advantages_BT).statistics
    some = 0
    for row, kept in enumerate(batch.mask_BT):
        for name in ("ratio", "clipped_low", "clipped_high"):
            assert len(set(statistics[name][row, kept].tolist())) <= 1
        some += int(statistics["clipped_high"][row].any() or statistics["clipped_low"][row].any())
    assert some > 0


def test_cispo_leaves_no_token_without_a_gradient():
    batch = random_batch(0, groups=4, size=4, T=8)
    batch = replace(batch, old_log_probs_BT=batch.log_probs_BT - 2.0)  # all are e² times as likely as when sampled
    clipped_BT = (credit(CISPO(), batch).advantages_BT > 0) & batch.mask_BT
    assert clipped_BT.any()
    _, cispo_BT, _ = loss_and_gradients(CISPO(clip_high=0.2), batch)
    _, ppo_clip_BT, _ = loss_and_gradients(DAPO(clip_high=0.2), batch)
    assert (cispo_BT[clipped_BT] < 0).all()
    assert (ppo_clip_BT[clipped_BT] == 0).all()


def test_cispos_statistics_tell_capped_weights_whatever_the_advantage():
    log_ratio_BT = torch.tensor([[math.log(6), math.log(4), math.log(0.05)] * 2], dtype=torch.float64)
    advantages_BT = torch.tensor([[1.0, 1.0, 1.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
    batch = random_batch(0, groups=1, size=1, T=6)
    mask_BT = torch.ones(1, 6, dtype=torch.bool)
    batch = replace(batch, mask_BT=mask_BT, old_log_probs_BT=batch.log_probs_BT - log_ratio_BT)
    statistics = token_loss(CISPO(), batch, advantages_BT).statistics
    assert statistics["clipped_high"].tolist() == [[1, 0, 0] * 2]
    assert statistics["clipped_low"].tolist() == [[0, 0, 0] * 2]  # no bound below, unless asked for
    assert token_loss(CISPO(clip_low=0.9), batch, advantages_BT).statistics["clipped_low"].tolist() == [[0, 0, 1] * 2]


def three_policies(batch, seed, cap):
    """The batch with a behaviour policy, and its weights as a trainer makes them."""
    noise_BT = torch.randn(batch.mask_BT.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    behaviour_BT = batch.old_log_probs_BT + 0.6 * noise_BT
    importance_BT = truncated_importance(batch.old_log_probs_BT, behaviour_BT, batch.mask_BT, cap=cap)
    return replace(batch, importance_BT=importance_BT), behaviour_BT


@settings(deadline=None, max_examples=50)
@given(batch=batches, seed=st.integers(0, 999), cap=st.sampled_from([1.0, 1.5, float("inf")]))
def test_decoupled_is_its_formula_with_three_policies(batch, seed, cap):
    """−min(π_prox/π_behav, cap) · min(ρA, clip(ρ)A) with ρ = π/π_prox, token by token, in plain floats."""
    batch, behaviour_BT = three_policies(batch, seed, cap)
    algorithm = DecoupledPPO(clip_low=0.1, clip_high=0.15)
    advantages = algorithm.advantages(batch.rewards_B, batch.groups_B).tolist()
    tokens = batch.mask_BT.nonzero().tolist()
    expected, expected_gradient_BT = 0.0, torch.zeros_like(batch.log_probs_BT)
    for row, token in tokens:
        policies = (batch.log_probs_BT, batch.old_log_probs_BT, behaviour_BT)
        current, proximal, behaviour = (math.exp(float(policy_BT[row, token])) for policy_BT in policies)
        ratio, weight = current / proximal, min(proximal / behaviour, cap)
        near = min(max(ratio, 0.9), 1.15)
        held = near * advantages[row] < ratio * advantages[row]
        expected -= weight * (near if held else ratio) * advantages[row] / len(tokens)
        expected_gradient_BT[row, token] = 0.0 if held else -weight * ratio * advantages[row] / len(tokens)
    loss, gradient_BT, _ = loss_and_gradients(algorithm, batch)
    assert float(loss) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(gradient_BT, expected_gradient_BT, rtol=1e-12, atol=1e-12)


def test_the_three_policies_cannot_be_exchanged():
    """The control: with behaviour for proximal the loss is another."""
    batch, behaviour_BT = three_policies(random_batch(0, groups=4, size=4, T=8), 0, 2.0)
    swapped = replace(
        batch,
        old_log_probs_BT=behaviour_BT,
        importance_BT=truncated_importance(behaviour_BT, batch.old_log_probs_BT, batch.mask_BT, cap=2.0),
    )
    sound, broken = (loss_and_gradients(DecoupledPPO(), which) for which in (batch, swapped))
    assert abs(float(sound[0] - broken[0])) > 1e-4
    assert (sound[1] - broken[1]).abs().max() > 1e-4


def test_decoupled_on_its_first_pass_is_the_policy_gradient_weighted_by_importance():
    """The policy is the proximal one, so nothing is clipped, however far the sampler's was."""
    batch = random_batch(0, groups=4, size=4, T=8)
    batch = replace(batch, old_log_probs_BT=batch.log_probs_BT)
    advantages_BT = credit(DecoupledPPO(), batch).advantages_BT
    _, gradient_BT, _ = loss_and_gradients(DecoupledPPO(), batch)
    expected_BT = -batch.importance_BT * advantages_BT / batch.mask_BT.sum()
    torch.testing.assert_close(gradient_BT, expected_BT, rtol=1e-12, atol=1e-12)


def test_reinforce_pp_has_one_baseline_for_all_prompts_and_its_variant_one_for_each():
    batch = random_batch(0, groups=2, size=2, T=3)
    batch = replace(
        batch,
        mask_BT=torch.ones(4, 3, dtype=torch.bool),
        rewards_B=torch.tensor([0.0, 1.0, 10.0, 11.0], dtype=torch.float64),
    )
    together_B = credit(ReinforcePlusPlus(), batch).advantages_BT[:, 0]
    by_prompt_B = credit(ReinforcePlusPlusBaseline(), batch).advantages_BT[:, 0]
    assert together_B.sign().tolist() == [-1, -1, 1, 1]  # the second prompt is the easier one
    assert by_prompt_B.tolist() == pytest.approx([-1, 1, -1, 1], abs=1e-6)
