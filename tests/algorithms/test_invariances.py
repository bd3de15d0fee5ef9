"""What must not matter does not: the micro-batch split, padding, the order of rows, what stands in masked slots."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.algorithms import loop_reference
from tests.algorithms.batches import (
    NAMES,
    WHITENING,
    advantages_and_weights,
    batches,
    credit,
    loss_and_gradients,
    random_batch,
    token_loss,
)

from proa.algorithms import ALGORITHMS, RLOO, DrGRPO

GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30, -1e30]
VOCABULARY = 7


def build(name):
    own = {"kl_reward_coefficient": 0.2} if name in ("ppo", "reinforce_pp") else {}
    return ALGORITHMS[name](kl_coefficient=0.3, entropy_coefficient=0.1, **own)


def same_bits(a, b):
    return a.numpy().tobytes() == b.numpy().tobytes()  # -0.0 is not 0.0 here


def parameter_gradient(algorithm, batch, micro_batches):
    """The gradient of a small model (a table of logits), accumulated over micro-batches of rows.

    The rows of a micro-batch are cut to the longest of them, as a trainer does. Credit is assigned before the split.
    """
    T = batch.mask_BT.shape[1]
    tokens_BT = (batch.importance_BT * 1e6).nan_to_num().long() % VOCABULARY  # any function of the row's content
    table_TV = torch.linspace(-1, 1, T * VOCABULARY, dtype=torch.float64).view(T, VOCABULARY).requires_grad_()
    advantages_BT, weights_BT = advantages_and_weights(algorithm, batch)
    for rows in micro_batches:
        longest = int((batch.mask_BT[rows] * torch.arange(1, T + 1)).max())
        log_probs_TV = table_TV.log_softmax(-1)
        chosen_BT = log_probs_TV.expand(len(rows), T, VOCABULARY).gather(-1, tokens_BT[rows][..., None])[..., 0]
        entropy_T = -(log_probs_TV.exp() * log_probs_TV).sum(-1)
        part = replace(batch.rows(rows), log_probs_BT=chosen_BT, entropy_BT=entropy_T.expand(len(rows), T))
        cut = replace(part, mask_BT=part.mask_BT[:, :longest])
        cut = replace(cut, **{name: tensor[:, :longest] for name, tensor in part.per_token().items()})
        loss_BT = token_loss(algorithm, cut, advantages_BT[rows, :longest]).loss_BT
        (weights_BT[rows, :longest] * loss_BT).sum().backward()
    return table_TV.grad


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(batch=batches, seed=st.integers(0, 999), pieces=st.integers(1, 6))
def test_any_split_into_micro_batches_gives_the_same_gradient(name, batch, seed, pieces):
    order = torch.randperm(len(batch.rewards_B), generator=torch.Generator().manual_seed(seed))
    split = [rows for rows in order.tensor_split(pieces) if len(rows)]
    whole = parameter_gradient(build(name), batch, [torch.arange(len(order))])
    torch.testing.assert_close(parameter_gradient(build(name), batch, split), whole, rtol=1e-12, atol=1e-12)


def test_a_mean_per_micro_batch_would_not_give_the_same_gradient():
    """The control: what the test above forbids."""
    algorithm, batch = build("dapo"), random_batch(0, groups=4)
    assert batch.lengths_B[:6].sum() != batch.lengths_B[6:].sum()
    whole, *_ = loss_and_gradients(algorithm, batch)
    halves = [loss_and_gradients(algorithm, batch.rows(rows))[0] for rows in torch.arange(12).split(6)]
    assert abs(float(sum(halves) / 2 - whole)) > 1e-3


@pytest.mark.parametrize("name", WHITENING)
def test_credit_within_micro_batches_would_not_be_the_same(name):
    """The control: why credit is assigned before the split."""
    batch = random_batch(0, groups=4)
    whole_BT = credit(build(name), batch).advantages_BT
    first_BT = credit(build(name), batch.rows(torch.arange(6))).advantages_BT
    assert (first_BT - whole_BT[:6]).abs().max() > 1e-2


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(batch=batches, extra=st.integers(1, 9), garbage=st.sampled_from([0.0, *GARBAGE]))
def test_extra_padding_changes_no_bit_of_the_gradient(name, batch, extra, garbage):
    padded = replace(
        batch,
        mask_BT=torch.nn.functional.pad(batch.mask_BT, (0, extra)),
        **{name: torch.nn.functional.pad(t, (0, extra), value=garbage) for name, t in batch.per_token().items()},
    )
    T = batch.mask_BT.shape[1]
    loss, *gradients = loss_and_gradients(build(name), batch)
    padded_loss, *padded_gradients = loss_and_gradients(build(name), padded)
    torch.testing.assert_close(padded_loss, loss, rtol=1e-12, atol=1e-12)  # the sum's order depends on the shape
    for gradient_BT, padded_BT in zip(gradients, padded_gradients, strict=True):
        assert same_bits(padded_BT[:, :T], gradient_BT)
        assert (padded_BT[:, T:] == 0).all()


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(batch=batches, seed=st.integers(0, 999))
def test_the_order_of_rows_does_not_matter(name, batch, seed):
    assume(loop_reference.keeps_its_digits(name, batch, vars(build(name))))
    order = torch.randperm(len(batch.rewards_B), generator=torch.Generator().manual_seed(seed))
    loss, *gradients = loss_and_gradients(build(name), batch)
    other_loss, *other_gradients = loss_and_gradients(build(name), batch.rows(order))
    torch.testing.assert_close(other_loss, loss, rtol=1e-12, atol=1e-12)
    for gradient_BT, other_BT in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(other_BT, gradient_BT[order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_garbage_in_masked_slots_changes_no_bit(name):
    for garbage in GARBAGE:
        for dtype in (torch.float32, torch.float64):
            assert_garbage_changes_no_bit(name, garbage, dtype)


def assert_garbage_changes_no_bit(name, garbage, dtype):
    batch = random_batch(1, groups=3, size=4, T=9, dtype=dtype)
    spoilt = {field: t.masked_fill(~batch.mask_BT, garbage) for field, t in batch.per_token().items()}
    spoilt_batch = replace(batch, **spoilt)
    clean_outcome = loss_and_gradients(build(name), batch)
    for clean, actual in zip(clean_outcome, loss_and_gradients(build(name), spoilt_batch), strict=True):
        assert same_bits(actual, clean)
    clean_credit, spoilt_credit = credit(build(name), batch), credit(build(name), spoilt_batch)
    assert same_bits(spoilt_credit.advantages_BT, clean_credit.advantages_BT)
    if clean_credit.returns_BT is not None:
        assert same_bits(spoilt_credit.returns_BT, clean_credit.returns_BT)
    spoilt_advantages_BT = clean_credit.advantages_BT.masked_fill(~batch.mask_BT, garbage)
    clean_statistics = token_loss(build(name), batch, clean_credit.advantages_BT).statistics
    for key, actual_BT in token_loss(build(name), spoilt_batch, spoilt_advantages_BT).statistics.items():
        assert same_bits(actual_BT, clean_statistics[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_empty_completions_give_no_gradient_and_no_nan(name):
    batch = random_batch(0)
    for outcome in loss_and_gradients(ALGORITHMS[name](), replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))):
        assert (outcome == 0).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ppo"])
def test_equal_rewards_give_no_gradient(name):
    rewards_B = torch.tensor([0.1 + 0.2, 0.3, 0.3] * 2, dtype=torch.float64)
    for outcome in loss_and_gradients(ALGORITHMS[name](), replace(random_batch(0), rewards_B=rewards_B)):
        assert (outcome == 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", WHITENING)
def test_a_reward_that_is_no_number_is_not_hidden_by_whitening(name, bad):
    batch = random_batch(0)
    batch = replace(batch, rewards_B=batch.rewards_B.index_fill(0, batch.lengths_B.argmax(), bad))
    assert not loss_and_gradients(ALGORITHMS[name](), batch)[0].isfinite()


@pytest.mark.parametrize("name", NAMES)
def test_a_term_with_coefficient_zero_cannot_spoil_the_loss(name):
    batch = random_batch(0)
    infinite_BT = torch.full_like(batch.log_probs_BT, float("inf"))
    spoilt = replace(batch, reference_log_probs_BT=infinite_BT, kl_BT=infinite_BT)
    for clean, actual in zip(*(loss_and_gradients(ALGORITHMS[name](), b) for b in (batch, spoilt)), strict=True):
        assert torch.equal(actual, clean)


def test_rloo_on_fresh_samples_is_reinforce_on_whole_completions():
    batch = random_batch(2)
    batch = replace(batch, old_log_probs_BT=batch.log_probs_BT, importance_BT=torch.ones_like(batch.log_probs_BT))
    _, gradient_BT, _ = loss_and_gradients(RLOO(), batch)
    log_probs_BT = batch.log_probs_BT.clone().requires_grad_()
    advantages_B = RLOO().advantages(batch.rewards_B, batch.groups_B)
    completion_log_probs_B = (log_probs_BT * batch.mask_BT).sum(dim=1)
    (reinforce_BT,) = torch.autograd.grad(-(advantages_B * completion_log_probs_B).mean(), log_probs_BT)
    torch.testing.assert_close(gradient_BT * batch.max_new_tokens, reinforce_BT, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_rloo_is_dr_grpo_times_g_over_g_minus_one(size):
    batch = random_batch(4, size=size)
    for rloo, dr_grpo in zip(*(loss_and_gradients(kind(), batch) for kind in (RLOO, DrGRPO)), strict=True):
        torch.testing.assert_close(rloo, dr_grpo * size / (size - 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_sampled_token_that_cannot_come_by_the_trainer_moves_nothing_and_spoils_nothing(name):
    """Its log-probability is -inf, by this pass alone or by the one before it too (`old: trainer`): it weighs 0."""
    batch = random_batch(3)
    row, place = batch.mask_BT.nonzero()[0].tolist()
    algorithm = replace(build(name), kl_coefficient=0.0)

    def with_impossible(tensor):
        changed = tensor.clone()
        changed[row, place] = -torch.inf
        return changed

    later = replace(batch, log_probs_BT=with_impossible(batch.log_probs_BT))
    before = replace(later, old_log_probs_BT=with_impossible(batch.old_log_probs_BT))
    before.importance_BT[row, place] = 0.0
    for one in (later, before):
        loss, by_log_probs_BT, by_entropy_BT = loss_and_gradients(algorithm, one)
        assert loss.isfinite()
        assert by_log_probs_BT.isfinite().all()
        assert by_entropy_BT.isfinite().all()
        assert by_log_probs_BT[row, place] == 0
