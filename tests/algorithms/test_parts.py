"""A wrong part in an algorithm is caught by its loop reference: wrong whitening, wrong recursion, wrong ratio."""

import pytest
import torch
from tests.algorithms import loop_reference
from tests.algorithms.batches import loss_and_gradients, random_batch

from proa.algorithms import ALGORITHMS, cispo, gspo, ppo, reinforce_pp, token_rewards
from proa.maths.gae import generalized_advantages, rewards_to_go
from proa.maths.importance import probability_ratio, sequence_ratio
from proa.maths.losses import clipped_ratio_loss, clipped_weight_loss
from proa.maths.shaping import token_rewards as true_token_rewards
from proa.maths.whitening import whiten

SETTINGS = {
    "clip_low": 0.15,
    "clip_high": 0.25,
    "kl_coefficient": 0.0,
    "kl_estimator": "k3",
    "entropy_coefficient": 0.0,
}
OWN = {
    "ppo": {"gamma": 0.9, "lam": 0.8, "kl_reward_coefficient": 0.2},
    "reinforce_pp": {"kl_reward_coefficient": 0.2},
}


def everything(mask_BT):
    return torch.ones_like(mask_BT)


def whitened_by_row(values_BT, mask_BT):
    return torch.cat([whiten(values_BT[row : row + 1], mask_BT[row : row + 1]) for row in range(len(mask_BT))])


def with_ddof_one(values_BT, mask_BT):
    count = int(mask_BT.sum())
    return whiten(values_BT, mask_BT) * ((count - 1) / count) ** 0.5


def score_in_the_last_column(score_B, kl_BT, mask_BT, *, kl_coefficient):
    rewards_BT = true_token_rewards(torch.zeros_like(score_B), kl_BT, mask_BT, kl_coefficient=kl_coefficient)
    rewards_BT[:, -1] += score_B
    return rewards_BT


def score_at_the_first_token(score_B, kl_BT, mask_BT, *, kl_coefficient):
    rewards_BT = true_token_rewards(torch.zeros_like(score_B), kl_BT, mask_BT, kl_coefficient=kl_coefficient)
    return rewards_BT + score_B[:, None] * (mask_BT & (mask_BT.cumsum(1) == 1))


def changed(function, change):
    """A function whose keywords are changed first."""
    return lambda *tensors, **how: function(*tensors, **change(how))


WHITENING_MUTANTS = [
    lambda values_BT, mask_BT: whiten(values_BT, everything(mask_BT)).masked_fill(~mask_BT, 0),
    whitened_by_row,
    with_ddof_one,
    lambda values_BT, mask_BT: whiten(values_BT, mask_BT, shift_mean=False),
    lambda values_BT, mask_BT: whiten(values_BT, mask_BT, epsilon=0.1),
    lambda values_BT, mask_BT: values_BT,
]
REWARD_MUTANTS = [
    score_in_the_last_column,
    score_at_the_first_token,
    changed(true_token_rewards, lambda how: {"kl_coefficient": -how["kl_coefficient"]}),
    changed(true_token_rewards, lambda how: {"kl_coefficient": 0.0}),
    lambda score_B, kl_BT, mask_BT, **how: true_token_rewards(score_B, kl_BT.roll(1, dims=1), mask_BT, **how),
]
ADVANTAGE_MUTANTS = [
    changed(generalized_advantages, lambda how: {**how, "bootstrap_B": None}),
    changed(generalized_advantages, lambda how: {**how, "gamma": how["lam"], "lam": how["gamma"]}),
    changed(generalized_advantages, lambda how: {**how, "gamma": 1.0}),
    changed(generalized_advantages, lambda how: {**how, "lam": 1.0}),
    lambda rewards_BT, values_BT, mask_BT, **how: generalized_advantages(
        rewards_BT, values_BT.roll(1, dims=1), mask_BT, **how
    ),
    lambda rewards_BT, values_BT, mask_BT, **how: generalized_advantages(
        rewards_BT, values_BT, everything(mask_BT), **how
    ),
]
RATIO_MUTANTS = [
    probability_ratio,
    lambda new_BT, old_BT, mask_BT: sequence_ratio(new_BT, old_BT, everything(mask_BT)),
    lambda new_BT, old_BT, mask_BT: sequence_ratio(new_BT, old_BT, mask_BT).detach() + 0 * new_BT,
    lambda new_BT, old_BT, mask_BT: sequence_ratio(new_BT, old_BT, mask_BT) ** mask_BT.sum(dim=1, keepdim=True),
]
MUTANTS = [
    *(("ppo", ppo, "whiten", mutant) for mutant in WHITENING_MUTANTS),
    *(("reinforce_pp", reinforce_pp, "whiten", mutant) for mutant in WHITENING_MUTANTS),
    *(("reinforce_pp_baseline", reinforce_pp, "whiten", mutant) for mutant in WHITENING_MUTANTS),
    *(("ppo", token_rewards, "token_rewards", mutant) for mutant in REWARD_MUTANTS),
    *(("reinforce_pp", token_rewards, "token_rewards", mutant) for mutant in REWARD_MUTANTS),
    *(("ppo", ppo, "generalized_advantages", mutant) for mutant in ADVANTAGE_MUTANTS),
    ("reinforce_pp", reinforce_pp, "rewards_to_go", lambda rewards_BT, mask_BT: rewards_BT.cumsum(1) * mask_BT),
    ("reinforce_pp", reinforce_pp, "rewards_to_go", lambda r_BT, m_BT: rewards_to_go(r_BT, m_BT).roll(-1, dims=1)),
    *(("gspo", gspo, "sequence_ratio", mutant) for mutant in RATIO_MUTANTS),
    ("cispo", cispo, "clipped_weight_loss", lambda new_BT, *rest, **clips: clipped_ratio_loss(*rest, **clips)),
    ("cispo", cispo, "clipped_weight_loss", changed(clipped_weight_loss, lambda how: {**how, "clip_low": 1.0})),
    ("cispo", cispo, "clipped_weight_loss", changed(clipped_weight_loss, lambda how: {**how, "clip_high": 9.0})),
    ("reinforce_pp_baseline", reinforce_pp, "group_relative", lambda rewards_B, groups_B, scale_by_std: rewards_B),
]  # fmt: skip


def gradient_difference(name):
    """From the reference, in the gradient by log-probabilities: the largest of several batches."""
    settings = {**SETTINGS, **OWN.get(name, {})}
    worst = 0.0
    for seed in (0, 4, 7):
        batch = random_batch(seed, groups=4, size=4, T=8)
        _, expected_BT, _ = loop_reference.loss_and_gradients(name, batch, settings)
        worst = max(
            worst, float((loss_and_gradients(ALGORITHMS[name](**settings), batch)[1] - expected_BT).abs().max())
        )
    return worst


@pytest.mark.parametrize(("name", "module", "part", "mutant"), MUTANTS)
def test_a_wrong_part_is_caught(monkeypatch, name, module, part, mutant):
    assert gradient_difference(name) < 1e-12
    monkeypatch.setattr(module, part, mutant)
    assert gradient_difference(name) > 1e-4
