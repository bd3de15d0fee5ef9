"""Splitting and merging: rows of any lengths come back as they were, boundaries aligned."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proa.data.experience import BufferItem, Experience, merge, split
from proa.data.facts import SampleFacts
from proa.data.sampling import Sampling


def item(prompt, completion, *, index=0, full=True):
    length = len(prompt) + len(completion)
    actions = torch.arange(len(completion), dtype=torch.float32)
    optional = {
        "values": actions + 1,
        "reward": torch.tensor(float(index)),
        "kl": actions + 2,
        "advantages": actions + 3,
        "attention_mask": torch.ones(length, dtype=torch.bool),
        "action_mask": torch.ones(len(completion), dtype=torch.bool),
        "versions": torch.full((len(completion),), index, dtype=torch.int32),
    }
    return BufferItem(
        torch.tensor([*prompt, *completion]),
        -actions,
        **(optional if full else {}),
        uid=f"u{index}",
        group_id=f"g{index // 2}",
        sampling=Sampling(),
        facts=SampleFacts("stop"),
    )


def assert_same(a, b):
    for name in vars(a):
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, torch.Tensor):
            assert left.dtype == right.dtype, name
            assert torch.equal(left, right), name
        else:
            assert left == right, name


rows = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=6)


@given(rows)
def test_merging_and_splitting_gives_the_rows_back(lengths):
    items = [item(range(1, p + 1), range(10, 10 + c), index=i) for i, (p, c) in enumerate(lengths)]
    for before, after in zip(items, split(merge(items)), strict=True):
        assert_same(before, after)


@given(rows)
def test_the_boundary_is_aligned_and_padding_is_zero_and_false(lengths):
    items = [item(range(1, p + 1), range(10, 10 + c), index=i) for i, (p, c) in enumerate(lengths)]
    batch = merge(items)
    boundary = batch.sequences.shape[1] - batch.action_log_probs.shape[1]
    for row, (p, c) in enumerate(lengths):
        assert batch.sequences[row, boundary - p : boundary].tolist() == list(range(1, p + 1))
        assert batch.sequences[row, boundary : boundary + c].tolist() == list(range(10, 10 + c))
        assert batch.attention_mask[row].sum() == p + c
        assert batch.action_mask[row].sum() == c
        assert not batch.sequences[row][~batch.attention_mask[row]].any()
        assert not batch.versions[row, c:].any()


def test_rows_without_masks_get_them_where_padding_makes_them_necessary():
    assert merge([item([1, 2], [3], full=False)] * 2).attention_mask is None
    ragged = merge([item([1, 2], [3], full=False), item([1], [3, 4], full=False)])
    assert ragged.attention_mask.tolist() == [[True, True, True, False], [False, True, True, True]]
    assert ragged.action_mask.tolist() == [[True, False], [True, True]]


def test_a_field_that_some_rows_lack_is_an_error():
    with pytest.raises(ValueError, match="values is there for some rows"):
        merge([item([1], [2]), item([1], [2], full=False)])
    with pytest.raises(ValueError, match="at least one row"):
        merge([])


def test_a_batch_from_elsewhere_without_identities_can_be_split():
    batch = Experience(torch.arange(6).view(2, 3), torch.zeros(2, 1), reward=torch.tensor([1.0, 2.0]))
    first, second = split(batch)
    assert (first.sequences.tolist(), second.reward.item(), first.group_id) == ([0, 1, 2], 2.0, "")


def test_advantages_per_sequence_stay_per_sequence():
    batch = Experience(torch.zeros(2, 3), torch.zeros(2, 2), advantages=torch.tensor([1.0, -1.0]))
    assert merge(split(batch)).advantages.tolist() == [1.0, -1.0]
