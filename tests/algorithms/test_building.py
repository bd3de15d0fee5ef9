"""Algorithms are built by name; what a user gets wrong is said in the user's words."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from tests.algorithms.batches import NAMES, credit, random_batch

from proa.algorithms import (
    ALGORITHMS,
    DAPO,
    GRPO,
    PPO,
    Algorithm,
    CreditInputs,
    DecoupledPPO,
    ReinforcePlusPlus,
    TokenLossInputs,
    build_algorithm,
)


def test_every_algorithm_is_built_by_its_name():
    assert list(ALGORITHMS) == NAMES
    for name, kind in ALGORITHMS.items():
        assert build_algorithm(name) == kind()
        assert kind.name == name
    assert build_algorithm("grpo", clip_low=0.1, kl_estimator="k2") == GRPO(clip_low=0.1, kl_estimator="k2")


def test_a_wrong_name_gets_the_nearest_right_one():
    with pytest.raises(ValueError, match=r"no algorithm 'gropo'; did you mean 'grpo'\? \(known: grpo, dr_grpo"):
        build_algorithm("gropo")


def test_a_wrong_setting_gets_the_nearest_right_one():
    with pytest.raises(ValueError, match=r"'grpo' has no setting 'clip_hihg'; did you mean 'clip_high'\?"):
        build_algorithm("grpo", clip_hihg=0.3)
    with pytest.raises(ValueError, match="'grpo' has no setting 'overlong_buffer'"):
        build_algorithm("grpo", overlong_buffer=3)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"clip_low": 0}, "clip_low must be a number, more than 0 and at most 1, not 0"),
        ({"clip_low": 1.5}, "clip_low must be a number"),
        ({"clip_high": -0.2}, "clip_high must be a number, more than 0, not -0.2"),
        ({"clip_high": float("nan")}, "clip_high must be a number"),
        ({"clip_high": True}, "clip_high must be a number"),
        ({"kl_coefficient": "3e-5"}, "kl_coefficient must be a number, at least 0, not '3e-5' .*3.0e-5"),
        ({"kl_coefficient": -1}, "kl_coefficient must be a number, at least 0"),
        ({"entropy_coefficient": None}, "entropy_coefficient must be a number, at least 0, not None"),
        ({"kl_estimator": "k4"}, "kl_estimator must be one of k1, k2, k3, not 'k4'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_at_once(params, message):
    for name in NAMES:
        with pytest.raises(ValueError, match=message):
            build_algorithm(name, **params)


@pytest.mark.parametrize("buffer", [-1, 2.5, "64", True])
def test_an_overlong_buffer_is_a_number_of_tokens(buffer):
    with pytest.raises(ValueError, match="overlong_buffer must be a whole number, at least 0, not"):
        DAPO(overlong_buffer=buffer)


def test_the_clip_can_be_turned_off():
    assert GRPO(clip_low=1, clip_high=float("inf")).clip_high == float("inf")


def test_an_algorithm_is_frozen_and_the_base_is_none():
    with pytest.raises(FrozenInstanceError):
        GRPO().clip_low = 0.3
    with pytest.raises(TypeError, match="abstract"):
        Algorithm()


@pytest.mark.parametrize(
    ("params", "message"),
    [({"kl_coefficient": 0.1}, "needs the reference model"), ({"entropy_coefficient": 0.1}, "needs the entropy")],
)
def test_a_term_without_its_input_is_refused(params, message):
    batch = random_batch(0)
    advantages_BT = credit(GRPO(), batch).advantages_BT
    inputs = TokenLossInputs(batch.log_probs_BT, batch.old_log_probs_BT, advantages_BT, batch.mask_BT)
    assert set(GRPO().token_loss(inputs).statistics) == {"ratio", "clipped_low", "clipped_high"}
    with pytest.raises(ValueError, match=message):
        GRPO(**params).token_loss(inputs)


def test_decoupled_without_behaviour_weights_is_refused():
    batch = random_batch(0)
    advantages_BT = credit(DecoupledPPO(), batch).advantages_BT
    with pytest.raises(ValueError, match="decoupled needs the weights"):
        DecoupledPPO().token_loss(
            TokenLossInputs(batch.log_probs_BT, batch.old_log_probs_BT, advantages_BT, batch.mask_BT)
        )


def test_credit_without_its_inputs_is_refused():
    batch = random_batch(0)
    inputs = CreditInputs(batch.rewards_B, batch.groups_B, batch.mask_BT)
    with pytest.raises(ValueError, match="ppo needs the critic's value"):
        PPO().assign_credit(inputs)
    with pytest.raises(ValueError, match="needs the KL of each token to the reference"):
        ReinforcePlusPlus().assign_credit(replace(inputs, kl_reward_coefficient=0.1))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"gamma": 1.1}, "gamma must be a number, at least 0 and at most 1, not 1.1"),
        ({"lam": -0.1}, "lam must be a number, at least 0 and at most 1"),
        ({"value_clip": 0}, "value_clip must be a number, more than 0, not 0"),
        ({"value_coefficient": -1}, "value_coefficient must be a number, at least 0"),
        ({"kl_reward_coefficient": "1e-3"}, "kl_reward_coefficient must be a number, at least 0, not '1e-3' .*3.0e-5"),
        ({"kl_horizon": 0}, "kl_horizon must be a number, more than 0"),
        ({"kl_target": 0, "kl_reward_coefficient": 0.1}, "kl_target must be a number, more than 0"),
        ({"kl_target": 6.0}, "kl_target needs a kl_reward_coefficient to start from"),
        ({"whiten": "no"}, "whiten must be true or false, not 'no'"),
    ],
)
def test_a_setting_of_ppo_that_cannot_be_is_refused_at_once(params, message):
    with pytest.raises(ValueError, match=message):
        build_algorithm("ppo", **params)


def test_what_an_algorithm_needs_is_known_before_it_runs():
    for name, kind in ALGORITHMS.items():
        assert kind.needs_critic is (name == "ppo")
        assert kind.needs_proximal is (name == "decoupled")
        assert kind.min_group == (1 if name in ("ppo", "reinforce_pp") else 2)
        assert kind().needs_reference is False
        assert kind(kl_coefficient=0.1).needs_reference is True
    for name in ("ppo", "reinforce_pp"):
        assert build_algorithm(name, kl_reward_coefficient=0.1).needs_reference is True
    assert PPO(kl_reward_coefficient=0.1, kl_target=6).kl_horizon == 10_000


def test_only_dapo_filters_groups_and_float_noise_is_no_difference():
    equal_G, different_G = torch.tensor([0.1 + 0.2, 0.3, 0.3], dtype=torch.float64), torch.tensor([0.0, 0.0, 1.0])
    for name, kind in ALGORITHMS.items():
        assert kind().keeps_group(different_G) is True
        assert kind().keeps_group(equal_G) is (name != "dapo")


def test_only_dapo_with_a_buffer_shapes_rewards():
    rewards_B, lengths_B = torch.ones(4), torch.tensor([0, 80, 90, 100])
    for kind in ALGORITHMS.values():
        assert torch.equal(kind().shape_rewards(rewards_B, lengths_B, 100), rewards_B)
    shaped_B = DAPO(overlong_buffer=20).shape_rewards(rewards_B, lengths_B, 100)
    assert shaped_B.tolist() == [1.0, 1.0, 0.5, 0.0]


def test_a_buffer_longer_than_the_completion_is_refused():
    with pytest.raises(ValueError, match="1 to 10 tokens"):
        DAPO(overlong_buffer=20).shape_rewards(torch.ones(1), torch.ones(1), 10)
