"""Every algorithm is its loop reference, in value and gradient; and a broken one is not, so the comparison can fail."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.algorithms import loop_reference
from tests.algorithms.batches import NAMES, batches, credit, loss_and_gradients, random_batch, token_loss

from proa.algorithms import ALGORITHMS, GroupAlgorithm

PLAIN = {"clip_low": 0.2, "clip_high": 0.2, "kl_coefficient": 0.0, "kl_estimator": "k3", "entropy_coefficient": 0.0}
FULL = {"clip_low": 0.15, "clip_high": 0.25, "kl_coefficient": 0.3, "kl_estimator": "k3", "entropy_coefficient": 0.1}
OWN = {
    "dapo": {"overlong_buffer": 3},
    "ppo": {"gamma": 0.9, "lam": 0.8, "kl_reward_coefficient": 0.2},
    "reinforce_pp": {"kl_reward_coefficient": 0.2},
}
DEFAULTS = {
    "dapo": {"clip_high": 0.28},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"clip_low": 1.0, "clip_high": 4.0},
    "ppo": {"gamma": 1.0, "lam": 0.95, "kl_reward_coefficient": 0.0},
    "reinforce_pp": {"kl_reward_coefficient": 0.0},
    "reinforce_pp_baseline": {"kl_estimator": "k2"},
}


def settings_of(name, base):
    return {**base, **OWN.get(name, {})}


def differences(algorithm, name, batch):
    """The largest difference from the reference: of the loss, of both gradients."""
    expected = loop_reference.loss_and_gradients(name, batch, settings_of(name, FULL))
    actual = loss_and_gradients(algorithm, batch)
    return [float((a - b).abs().max()) for a, b in zip(actual, expected, strict=True)]


@pytest.mark.parametrize("base", [PLAIN, FULL])
@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(batch=batches, estimator=st.sampled_from(["k1", "k2", "k3"]))
def test_value_and_gradients_equal_the_loops(name, base, batch, estimator):
    own = {**settings_of(name, base), "kl_estimator": estimator}
    assume(loop_reference.keeps_its_digits(name, batch, own))
    expected = loop_reference.loss_and_gradients(name, batch, own)
    for ours, theirs in zip(loss_and_gradients(ALGORITHMS[name](**own), batch), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_are_those_of_the_paper(name):
    expected_settings = {**PLAIN, **DEFAULTS.get(name, {})}
    defaults = vars(ALGORITHMS[name]())
    assert {setting: defaults[setting] for setting in expected_settings} == expected_settings
    for seed in range(5):
        batch = random_batch(seed, groups=4, size=4, T=8)
        expected = loop_reference.loss_and_gradients(name, batch, expected_settings)
        for ours, theirs in zip(loss_and_gradients(ALGORITHMS[name](), batch), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=20)
@given(batch=batches)
def test_credit_is_zero_where_masked_and_has_no_gradient(name, batch):
    variables = {field: tensor.clone().requires_grad_() for field, tensor in batch.per_token().items()}
    given_credit = credit(ALGORITHMS[name](**settings_of(name, FULL)), replace(batch, **variables))
    for tensor_BT in (given_credit.advantages_BT, given_credit.returns_BT):
        if tensor_BT is not None:
            assert tensor_BT.shape == batch.mask_BT.shape
            assert (tensor_BT[~batch.mask_BT] == 0).all()
            assert not tensor_BT.requires_grad
    assert (given_credit.returns_BT is not None) == (name == "ppo")


def flipped_sign(kind):
    class Mutant(kind):
        def assign_credit(self, inputs):
            return replace(super().assign_credit(inputs), advantages_BT=-super().assign_credit(inputs).advantages_BT)

    return Mutant


def credit_shifted_by_one(kind):
    class Mutant(kind):
        def assign_credit(self, inputs):
            sound = super().assign_credit(inputs)
            return replace(sound, advantages_BT=sound.advantages_BT.roll(1, dims=1))

    return Mutant


def dropped_mask(kind):
    class Mutant(kind):
        def token_loss(self, inputs):
            return super().token_loss(replace(inputs, mask_BT=torch.ones_like(inputs.mask_BT)))

        def token_weights(self, mask_BT, max_new_tokens, *, dtype):
            return super().token_weights(torch.ones_like(mask_BT), max_new_tokens, dtype=dtype)

    return Mutant


def shifted_by_one(kind):
    class Mutant(kind):
        def token_loss(self, inputs):
            return super().token_loss(replace(inputs, old_log_probs_BT=inputs.old_log_probs_BT.roll(1, dims=1)))

    return Mutant


def mask_shifted_by_one(kind):
    class Mutant(kind):
        def token_loss(self, inputs):
            return super().token_loss(replace(inputs, mask_BT=inputs.mask_BT.roll(1, dims=1)))

    return Mutant


def swapped_clips(kind):
    return lambda **own: kind(**{**own, "clip_low": own["clip_high"], "clip_high": own["clip_low"]})


def flipped_kl(kind):
    class Mutant(kind):
        def token_loss(self, inputs):
            swapped = 2 * inputs.log_probs_BT.detach() - inputs.reference_log_probs_BT
            return super().token_loss(replace(inputs, reference_log_probs_BT=swapped))

    return Mutant


def forgotten_importance(kind):
    class Mutant(kind):
        def token_loss(self, inputs):
            return super().token_loss(replace(inputs, importance_BT=torch.ones_like(inputs.log_probs_BT)))

    return Mutant


def mixed_up_groups(kind):
    class Mutant(kind):
        def assign_credit(self, inputs):
            return super().assign_credit(replace(inputs, groups_B=inputs.groups_B.roll(1)))

    return Mutant


MUTANTS = [
    flipped_sign,
    credit_shifted_by_one,
    dropped_mask,
    shifted_by_one,
    mask_shifted_by_one,
    swapped_clips,
    flipped_kl,
    forgotten_importance,
    mixed_up_groups,
]


def has_use_for_groups(name):
    return issubclass(ALGORITHMS[name], GroupAlgorithm)


@pytest.mark.parametrize("name", NAMES)
def test_every_mutant_is_caught(name):
    batch = random_batch(0, groups=4, size=4, T=8)
    assert max(differences(ALGORITHMS[name](**settings_of(name, FULL)), name, batch)) < 1e-12
    for mutant in MUTANTS:
        if mutant is mixed_up_groups and not has_use_for_groups(name):
            continue
        broken = mutant(ALGORITHMS[name])(**settings_of(name, FULL))
        loss_difference, gradient_difference, _ = differences(broken, name, batch)
        assert min(loss_difference, gradient_difference) > 1e-4, mutant.__name__


@pytest.mark.parametrize("name", NAMES)
def test_no_algorithm_passes_for_another(name):
    batch = random_batch(4, groups=4, size=4, T=8)  # some completions are overlong, which tells DAPO from the others
    for other in NAMES:
        distance = max(differences(ALGORITHMS[other](**settings_of(other, FULL)), name, batch))
        assert (distance < 1e-12) == (name == other), other


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(batch=batches, seed=st.integers(0, 99))
def test_statistics_say_per_token_what_happened_and_nothing_where_masked(name, batch, seed):
    advantages_BT = torch.randn(batch.mask_BT.shape, generator=torch.Generator().manual_seed(seed)).double()
    batch = replace(batch, log_probs_BT=batch.log_probs_BT.clone().requires_grad_())
    result = token_loss(ALGORITHMS[name](**FULL), batch, advantages_BT)
    assert set(result.statistics) == {"ratio", "clipped_low", "clipped_high", "kl", "entropy"}
    for tensor in result.statistics.values():
        assert not tensor.requires_grad
        assert tensor.shape == batch.mask_BT.shape
        assert (tensor[~batch.mask_BT] == 0).all()
    assert (result.loss_BT[~batch.mask_BT] == 0).all()


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(batch=batches, seed=st.integers(0, 99))
def test_clipped_is_exactly_where_the_clip_changed_the_gradient(name, batch, seed):
    advantages_BT = torch.randn(batch.mask_BT.shape, generator=torch.Generator().manual_seed(seed)).double()
    batch = replace(batch, log_probs_BT=batch.log_probs_BT.clone().requires_grad_())
    clips = {"clip_low": 0.15, "clip_high": 0.25}

    def gradient_and_statistics(**clips):
        result = token_loss(ALGORITHMS[name](**clips), batch, advantages_BT)
        return torch.autograd.grad(result.loss_BT.sum(), batch.log_probs_BT)[0], result.statistics

    free_BT, free_statistics = gradient_and_statistics(clip_low=1.0, clip_high=float("inf"))
    clipped_BT, statistics = gradient_and_statistics(**clips)
    low_BT, high_BT = statistics["clipped_low"].bool(), statistics["clipped_high"].bool()
    assert torch.equal(low_BT | high_BT, (clipped_BT - free_BT).abs() > 1e-12)
    assert (statistics["ratio"][low_BT] < 1 - clips["clip_low"]).all()
    assert (statistics["ratio"][high_BT] > 1 + clips["clip_high"]).all()
    assert not free_statistics["clipped_low"].any()
    assert not free_statistics["clipped_high"].any()
    assert torch.equal(statistics["ratio"], free_statistics["ratio"])  # what was, not what it was clipped to
