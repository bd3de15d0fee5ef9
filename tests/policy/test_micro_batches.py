"""Micro-batches: within the budget, few and even, and with the gradient of the whole batch."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proa.data.experience import Experience, merge, split
from proa.data.facts import SampleFacts
from proa.policy.log_probs import action_statistics
from proa.policy.micro_batches import plan_micro_batches, take_rows

lengths_of_rows = st.lists(st.integers(0, 40), max_size=12)
budgets = st.integers(1, 120)


@given(lengths_of_rows, budgets)
def test_each_row_is_in_one_batch_within_the_budget_or_alone(lengths, budget):
    plan = plan_micro_batches(lengths, budget)
    assert sorted(itertools.chain(*plan)) == list(range(len(lengths)))
    for batch in plan:
        assert batch == sorted(batch)
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget


def best_by_search(lengths, budget):
    """Fewest batches, then the smallest largest batch, over all partitions of the rows."""

    def partitions(rows):
        if not rows:
            yield []
            return
        for rest in partitions(rows[1:]):
            yield [[rows[0]], *rest]
            for i in range(len(rest)):
                yield [*rest[:i], [rows[0], *rest[i]], *rest[i + 1 :]]

    def cost(batch):
        return len(batch) * max(lengths[row] for row in batch)

    return min(
        (len(plan), max(cost(batch) for batch in plan))
        for plan in partitions(list(range(len(lengths))))
        if all(len(batch) == 1 or cost(batch) <= budget for batch in plan)
    )


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 40))
def test_no_plan_has_fewer_batches_nor_of_as_many_a_smaller_largest_one(lengths, budget):
    plan = plan_micro_batches(lengths, budget)
    largest = max(len(batch) * max(lengths[row] for row in batch) for batch in plan)
    assert (len(plan), largest) == best_by_search(lengths, budget)


@given(lengths_of_rows, budgets)
def test_the_largest_row_comes_first(lengths, budget):
    longest = [max(lengths[row] for row in batch) for batch in plan_micro_batches(lengths, budget)]
    assert longest == sorted(longest, reverse=True)


def test_a_budget_of_0_is_one_batch():
    assert plan_micro_batches([3, 900, 5], 0) == [[0, 1, 2]]


def test_no_rows_need_no_batch():
    assert plan_micro_batches([], 0) == plan_micro_batches([], 10) == []


def test_bad_lengths_and_budgets_are_refused():
    with pytest.raises(ValueError, match=r"token_budget must be 0 \(one batch\) or more, not -1"):
        plan_micro_batches([1], -1)
    with pytest.raises(ValueError, match="a length below 0: -2"):
        plan_micro_batches([1, -2], 10)


RAGGED = [(3, 4), (5, 1), (1, 5), (2, 2), (4, 3)]


@pytest.fixture
def batch(padded):
    sequences, mask, actions = padded(RAGGED)
    per_action = torch.arange(len(RAGGED) * actions).view(len(RAGGED), actions) * mask[:, -actions:]
    return Experience(
        sequences,
        per_action.double(),
        values=per_action + 1.0,
        reward=torch.arange(5.0),
        advantages=torch.arange(5.0) - 2,
        attention_mask=mask,
        action_mask=mask[:, -actions:],
        versions=per_action.int(),
        uids=("a", "b", "c", "d", "e"),
        facts=tuple(SampleFacts(reward_error=str(row)) for row in range(5)),
    )


def assert_same(left, right):
    for name, value in vars(left).items():
        other = getattr(right, name)
        same = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
        assert same, (name, value, other)


@pytest.mark.parametrize("rows", [[0], [1, 3], [4, 0, 2], [2, 2], [0, 1, 2, 3, 4]])
def test_taken_rows_are_the_merge_of_those_rows(rows, batch):
    batch.values *= batch.action_mask  # merging fills padding with 0
    batch.group_ids = tuple("vwxyz")
    items = split(batch)
    assert_same(take_rows(batch, rows), merge([items[row] for row in rows]))


def test_taken_rows_have_no_column_of_padding_only(batch):
    taken = take_rows(batch, [1, 3])
    assert taken.sequences.shape == (2, 5 + 2)
    assert taken.action_log_probs.shape == taken.values.shape == taken.versions.shape == (2, 2)
    assert taken.advantages.tolist() == [-1.0, 1.0]
    assert taken.uids == ("b", "d")
    assert taken.group_ids == ()
    assert taken.kl is None


def test_the_batch_itself_is_left_as_it_was(batch):
    before = batch.sequences.clone()
    take_rows(batch, [1]).sequences.zero_()
    assert torch.equal(batch.sequences, before)


def test_without_a_mask_nothing_is_trimmed():
    batch = Experience(torch.arange(12).view(3, 4), torch.zeros(3, 2))
    taken = take_rows(batch, [2, 0])
    assert taken.sequences.tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    assert taken.action_log_probs.shape == (2, 2)
    assert taken.attention_mask is None


def test_taking_no_rows_is_refused(batch):
    with pytest.raises(ValueError, match="a micro-batch has at least one"):
        take_rows(batch, [])


def summed_gradient(model, batch, plan):
    model.zero_grad()
    for rows in plan:
        part = take_rows(batch, rows)
        actions = part.action_log_probs.shape[1]
        statistics = action_statistics(model, part.sequences, part.attention_mask, actions, with_entropy=True)
        weighted = part.advantages[:, None] * statistics.log_probs_BA + 0.1 * statistics.entropy_BA
        weighted.sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("shape", ["llama", "gpt2"])
def test_any_split_into_micro_batches_sums_to_the_same_gradient(shape, tiny, batch):
    model = tiny(shape)
    whole = summed_gradient(model, batch, [[0, 1, 2, 3, 4]])
    planned = [plan_micro_batches([p + c for p, c in RAGGED], budget) for budget in (7, 14, 21)]
    for plan in [*planned, [[4, 2], [3, 0, 1]], [[4], [3], [2], [1], [0]]]:
        parts = summed_gradient(model, batch, plan)
        for name in whole:
            torch.testing.assert_close(parts[name], whole[name], rtol=1e-12, atol=1e-12)
