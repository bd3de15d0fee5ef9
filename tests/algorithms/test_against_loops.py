"""Every algorithm is its loop reference, in value and gradient; and a broken one is not, so the comparison can fail."""

from dataclasses import replace

import loop_reference
import pytest
import torch
from batches import NAMES, batches, loss_and_gradients, random_batch, token_loss
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.algorithms import ALGORITHMS

PLAIN = {"clip_low": 0.2, "clip_high": 0.2, "kl_coefficient": 0.0, "kl_estimator": "k3", "entropy_coefficient": 0.0}
FULL = {"clip_low": 0.15, "clip_high": 0.25, "kl_coefficient": 0.3, "kl_estimator": "k3", "entropy_coefficient": 0.1}
OWN = {"dapo": {"overlong_buffer": 3}}


def settings_of(name, base):
    return {**base, **OWN.get(name, {})}


def differences(algorithm, name, batch):
    """The largest difference from the reference: of the loss, of both gradients."""
    expected = loop_reference.loss_and_gradients(name, batch, settings_of(name, FULL))
    actual = loss_and_gradients(algorithm, batch)
    return [float((a - b).abs().max()) for a, b in zip(actual, expected, strict=True)]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("base", [PLAIN, FULL])
@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(batch=batches)
def test_value_and_gradients_equal_the_loops(name, base, estimator, batch):
    own = {**settings_of(name, base), "kl_estimator": estimator}
    expected = loop_reference.loss_and_gradients(name, batch, own)
    for ours, theirs in zip(loss_and_gradients(ALGORITHMS[name](**own), batch), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_are_those_of_the_paper(name):
    batch = random_batch(3)
    clip_high = 0.28 if name == "dapo" else 0.2
    expected = loop_reference.loss_and_gradients(name, batch, {**PLAIN, "clip_high": clip_high})
    for ours, theirs in zip(loss_and_gradients(ALGORITHMS[name](), batch), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def flipped_sign(kind):
    class Mutant(kind):
        def advantages(self, rewards_B, groups_B):
            return -super().advantages(rewards_B, groups_B)

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
            return super().token_loss(replace(inputs, importance_BT=None))

    return Mutant


def mixed_up_groups(kind):
    class Mutant(kind):
        def advantages(self, rewards_B, groups_B):
            return super().advantages(rewards_B, groups_B.roll(1))

    return Mutant


MUTANTS = [
    flipped_sign,
    dropped_mask,
    shifted_by_one,
    mask_shifted_by_one,
    swapped_clips,
    flipped_kl,
    forgotten_importance,
    mixed_up_groups,
]


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_mutant_is_caught(name, mutant):
    batch = random_batch(0, groups=4, size=4, T=8)
    sound, broken = (kind(**settings_of(name, FULL)) for kind in (ALGORITHMS[name], mutant(ALGORITHMS[name])))
    assert max(differences(sound, name, batch)) < 1e-12
    loss_difference, gradient_difference, _ = differences(broken, name, batch)
    assert loss_difference > 1e-4
    assert gradient_difference > 1e-4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_no_algorithm_passes_for_another(name, other):
    batch = random_batch(0, groups=4, size=4, T=8)
    distance = max(differences(ALGORITHMS[other](**settings_of(other, FULL)), name, batch))
    assert (distance < 1e-12) == (name == other)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(batch=batches, seed=st.integers(0, 99))
def test_statistics_say_per_token_what_happened_and_nothing_where_masked(name, batch, seed):
    advantages_B = torch.randn(len(batch.rewards_B), generator=torch.Generator().manual_seed(seed)).double()
    batch = replace(batch, log_probs_BT=batch.log_probs_BT.clone().requires_grad_())
    algorithm = ALGORITHMS[name](**FULL)
    result = token_loss(algorithm, batch, advantages_B)
    assert set(result.statistics) == {"ratio", "clipped_low", "clipped_high", "kl", "entropy"}
    for tensor in result.statistics.values():
        assert not tensor.requires_grad
        assert (tensor[~batch.mask_BT] == 0).all()
    assert (result.loss_BT[~batch.mask_BT] == 0).all()
    plain = token_loss(ALGORITHMS[name](**{**FULL, "kl_coefficient": 0.0}), batch, advantages_B)
    (gradient_BT,) = torch.autograd.grad(plain.loss_BT.sum(), batch.log_probs_BT)
    clipped_BT = (result.statistics["clipped_low"] + result.statistics["clipped_high"]).bool()
    assert torch.equal(clipped_BT, (gradient_BT == 0) & batch.mask_BT)  # clipped is where the gradient is gone
    low_BT, high_BT = result.statistics["clipped_low"].bool(), result.statistics["clipped_high"].bool()
    assert (result.statistics["ratio"][low_BT] < 1).all()
    assert (result.statistics["ratio"][high_BT] > 1).all()
