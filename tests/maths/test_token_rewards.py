"""Rewards per token: the KL's cost at each, the score at the last real one; and the KL's price, adapted."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.maths.shaping import adapted_kl_coefficient, token_rewards

torch.set_num_threads(1)  # two sum in another order than one

GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30]


@st.composite
def batches(draw):
    """Scores, KL and a mask with holes, of which some rows are empty."""
    B, T, seed = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    score_B = torch.randn(B, generator=generator, dtype=torch.float64)
    kl_BT = torch.randn(B, T, generator=generator, dtype=torch.float64)
    lengths_B = torch.randint(0, T + 1, (B,), generator=generator)
    mask_BT = (torch.arange(T) < lengths_B[:, None]) & (torch.rand(B, T, generator=generator) < 0.8)
    return score_B, kl_BT, mask_BT


@pytest.mark.parametrize("coefficient", [0.0, 0.3])
@settings(deadline=None)
@given(batch=batches())
def test_every_real_token_pays_its_kl_and_the_last_gets_the_score(coefficient, batch):
    score_B, kl_BT, mask_BT = batch
    rewards_BT = token_rewards(score_B, kl_BT, mask_BT, kl_coefficient=coefficient)
    expected_BT = torch.zeros_like(kl_BT)
    for row, kept in enumerate(mask_BT.tolist()):
        tokens = [token for token, real in enumerate(kept) if real]
        for token in tokens:
            expected_BT[row, token] = -coefficient * float(kl_BT[row, token])
        if tokens:
            expected_BT[row, tokens[-1]] += float(score_B[row])
    torch.testing.assert_close(rewards_BT, expected_BT, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("garbage", GARBAGE)
@settings(deadline=None, max_examples=30)
@given(batch=batches())
def test_garbage_in_masked_slots_and_in_the_score_of_an_empty_row_changes_no_bit(garbage, batch):
    score_B, kl_BT, mask_BT = batch
    spoilt = score_B.masked_fill(~mask_BT.any(dim=1), garbage), kl_BT.masked_fill(~mask_BT, garbage)
    clean_BT = token_rewards(score_B, kl_BT, mask_BT, kl_coefficient=0.3)
    actual_BT = token_rewards(*spoilt, mask_BT, kl_coefficient=0.3)
    assert actual_BT.numpy().tobytes() == clean_BT.numpy().tobytes()


def test_a_coefficient_of_zero_does_not_look_at_the_kl():
    score_B, mask_BT = torch.tensor([2.0]), torch.tensor([[True, True]])
    for kl_BT in (None, torch.full((1, 2), float("inf"))):
        assert token_rewards(score_B, kl_BT, mask_BT, kl_coefficient=0.0).tolist() == [[0.0, 2.0]]


def test_a_coefficient_without_a_kl_is_refused():
    with pytest.raises(ValueError, match="needs the KL of each token"):
        token_rewards(torch.ones(1), None, torch.ones(1, 2, dtype=torch.bool), kl_coefficient=0.1)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (6.0, 0.1),  # on target
        (6.6, 0.1 * (1 + 0.1 * 0.05)),  # a tenth above
        (5.4, 0.1 * (1 - 0.1 * 0.05)),
        (600.0, 0.1 * (1 + 0.2 * 0.05)),  # the error counts as a fifth at most
        (float("inf"), 0.1 * (1 + 0.2 * 0.05)),
        (0.0, 0.1 * (1 - 0.2 * 0.05)),
        (-1.0, 0.1 * (1 - 0.2 * 0.05)),  # k1 may be negative
    ],
)
def test_the_coefficient_follows_the_kl_in_proportion(observed, expected):
    adapted = adapted_kl_coefficient(0.1, observed, target=6.0, horizon=10_000, samples=500)
    assert adapted == pytest.approx(expected, rel=1e-12)


def test_a_batch_larger_than_the_horizon_cannot_turn_the_coefficient_negative():
    assert adapted_kl_coefficient(0.1, 0.0, target=6.0, horizon=10, samples=1_000) == pytest.approx(0.08)


def test_a_kl_that_is_no_number_changes_nothing():
    assert adapted_kl_coefficient(0.1, float("nan"), target=6.0, horizon=10_000, samples=500) == 0.1


def test_it_settles_where_the_kl_is_the_target():
    """The control loop: a policy whose KL falls as its price rises."""
    coefficient = 1.0
    for _ in range(2_000):
        coefficient = adapted_kl_coefficient(coefficient, 1 / coefficient, target=5.0, horizon=100, samples=10)
    assert 1 / coefficient == pytest.approx(5.0, rel=1e-6)
