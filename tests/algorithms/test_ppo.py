"""PPO: returns and value loss are those of the definition, and the critic's part stands on its own."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from tests.algorithms import loop_reference
from tests.algorithms.batches import batches, credit, random_batch

from proa.algorithms import PPO, CreditInputs

SETTINGS = {"gamma": 0.9, "lam": 0.8, "kl_reward_coefficient": 0.2}


def table(rows_of_numbers, batch):
    """Numbers per real token as a tensor, zero where masked."""
    result_BT = torch.zeros_like(batch.values_BT)
    result_BT[batch.mask_BT] = torch.tensor([number for row in rows_of_numbers for number in row], dtype=torch.float64)
    return result_BT


@settings(deadline=None, max_examples=50)
@given(batches)
def test_returns_are_values_plus_advantages_before_whitening(batch):
    rows = loop_reference.real_tokens(batch)
    advantages_BT = table(loop_reference.ppo_advantages(batch, rows, SETTINGS), batch)
    returns_BT = advantages_BT + batch.values_BT * batch.mask_BT
    for whiten in (True, False):
        torch.testing.assert_close(
            credit(PPO(**SETTINGS, whiten=whiten), batch).returns_BT, returns_BT, rtol=1e-12, atol=1e-12
        )
    plain_BT = credit(PPO(**SETTINGS, whiten=False), batch).advantages_BT
    torch.testing.assert_close(plain_BT, advantages_BT, rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=50)
@given(batches)
def test_the_value_loss_and_its_gradient_are_those_of_the_loops(batch):
    algorithm = PPO(**SETTINGS, value_clip=0.3)
    returns_BT = credit(algorithm, batch).returns_BT
    values_BT = (batch.values_BT + batch.kl_BT).requires_grad_()  # moved since the batch was made
    loss_BT = algorithm.value_loss(values_BT, batch.values_BT, returns_BT, batch.mask_BT)
    (gradient_BT,) = torch.autograd.grad(loss_BT.sum(), values_BT)
    expected_loss_BT, expected_gradient_BT = torch.zeros_like(loss_BT), torch.zeros_like(loss_BT)
    for row, token in batch.mask_BT.nonzero().tolist():
        value, old, target = (float(t[row, token]) for t in (values_BT.detach(), batch.values_BT, returns_BT))
        near = min(max(value, old - 0.3), old + 0.3)
        held = abs(near - target) > abs(value - target)
        expected_loss_BT[row, token] = ((near if held else value) - target) ** 2 / 2
        expected_gradient_BT[row, token] = 0.0 if held else value - target
    torch.testing.assert_close(loss_BT.detach(), expected_loss_BT, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient_BT, expected_gradient_BT, rtol=1e-12, atol=1e-12)


def test_a_critic_that_knows_the_rewards_leaves_no_advantage():
    """With γ 1 and no KL every token's return is the score, so values equal to it are never surprised."""
    batch = random_batch(0)
    batch = replace(batch, values_BT=batch.rewards_B[:, None].expand_as(batch.mask_BT), bootstrap_B=None)
    found = credit(PPO(), batch)
    torch.testing.assert_close(found.returns_BT, batch.values_BT * batch.mask_BT, rtol=1e-12, atol=1e-12)
    assert (found.advantages_BT == 0).all()  # whitening would have made noise of what is left


def test_a_completion_that_was_cut_off_is_not_taken_for_one_that_ended_badly():
    batch = random_batch(0)
    ended = credit(PPO(whiten=False), replace(batch, bootstrap_B=torch.zeros_like(batch.rewards_B)))
    cut_off = credit(PPO(whiten=False), replace(batch, bootstrap_B=torch.ones_like(batch.rewards_B)))
    assert (cut_off.returns_BT > ended.returns_BT)[batch.mask_BT].all()


def test_the_coefficient_that_counts_is_the_one_given_with_the_batch():
    """It is adapted from step to step; the setting is only where it starts."""
    batch = random_batch(0)
    inputs = CreditInputs(batch.rewards_B, batch.groups_B, batch.mask_BT, batch.kl_BT, 0.2, batch.values_BT)
    started_at_one = PPO(kl_reward_coefficient=1.0, whiten=False).assign_credit(inputs)
    started_here = PPO(kl_reward_coefficient=0.2, whiten=False).assign_credit(inputs)
    dearer = PPO(kl_reward_coefficient=1.0, whiten=False).assign_credit(replace(inputs, kl_reward_coefficient=0.3))
    assert torch.equal(started_at_one.advantages_BT, started_here.advantages_BT)
    assert not torch.equal(dearer.advantages_BT, started_here.advantages_BT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_credit_keeps_the_dtype_of_the_values(dtype):
    found = credit(PPO(), random_batch(0, dtype=dtype))
    assert (found.advantages_BT.dtype, found.returns_BT.dtype) == (dtype, dtype)


def test_the_critics_defaults_are_those_of_the_papers_code():
    assert (PPO().value_clip, PPO().value_coefficient, PPO().whiten) == (0.2, 0.5, True)
    assert (PPO().kl_target, PPO().kl_horizon) == (None, 10_000)
