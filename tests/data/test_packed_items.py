"""Packed items: what comes out is what went in, to the bit, in memory of its own."""

import pickle
import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from proa.data.experience import ACTION_LIKE, SEQUENCE_LIKE, BufferItem, Experience, split
from proa.data.facts import SampleFacts
from proa.data.packed_items import pack_items, unpack_items
from proa.data.sampling import Sampling

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
          torch.float32, torch.float64, torch.complex64]  # fmt: skip
TENSOR_FIELDS = (*SEQUENCE_LIKE, *ACTION_LIKE, "reward")


def from_bytes(generator, shape, dtype):
    """Any bits at all: NaNs with a payload, negative zeros and infinities too."""
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8).view(dtype).reshape(shape)


def an_item(prompt, completion, seed):
    """Any dtype in any field, per token or per sequence or not at all."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    values = {}
    for name in TENSOR_FIELDS:
        shape = (prompt + completion,) if name in SEQUENCE_LIKE else (completion,)
        if name not in ("sequences", "action_log_probs"):
            shape = choose.choice([shape, (), None])
        if shape is not None:
            values[name] = from_bytes(generator, shape, choose.choice(DTYPES))
    return BufferItem(
        **values,
        uid=choose.choice(["", "3/1"]),
        group_id=choose.choice(["", "ü"]),
        sampling=choose.choice([None, Sampling(), Sampling(temperature=0.5)]),
        facts=choose.choice([SampleFacts(), SampleFacts("stop", {"length": 1.0, "none": None})]),
    )


rows = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(0, 2**31)), max_size=5)


def bits(tensor):
    return tensor.reshape(-1).view(torch.uint8).tolist()


def assert_same(before, after):
    assert type(after) is BufferItem
    for name, left in vars(before).items():
        right = getattr(after, name)
        if isinstance(left, torch.Tensor):
            assert (left.dtype, left.shape) == (right.dtype, right.shape), name
            assert bits(left) == bits(right), name
        else:
            assert left == right, name


@given(rows)
def test_every_bit_comes_back_over_a_pickle(lengths):
    before = [an_item(*row) for row in lengths]
    after = unpack_items(pickle.loads(pickle.dumps(pack_items(before), protocol=5)))
    assert isinstance(after, tuple)
    assert len(after) == len(before)
    for one, other in zip(before, after, strict=True):
        assert_same(one, other)


def small_items():
    return [
        BufferItem(torch.arange(3), torch.tensor([-1.0, -2.0]), reward=torch.tensor(0.5), uid="0/0", group_id="0"),
        BufferItem(torch.arange(2), torch.tensor([]), values=torch.tensor([]), uid="0/1", group_id="0"),
    ]


def test_items_from_read_only_memory_can_be_written_to():
    """As from Ray's object store, whose arrays cannot."""
    packed = pack_items(small_items())
    for column in packed.columns:
        column.data.flags.writeable = False
    after = unpack_items(packed)
    after[0].action_log_probs.mul_(2)
    after[0].reward.add_(1)
    assert (after[0].action_log_probs.tolist(), after[0].reward.item()) == ([-2.0, -4.0], 1.5)
    assert unpack_items(packed)[0].action_log_probs.tolist() == [-1.0, -2.0]


def test_packing_takes_a_copy():
    items = small_items()
    packed = pack_items(items)
    items[0].action_log_probs.zero_()
    items[0].reward.zero_()
    after = unpack_items(packed)
    assert (after[0].action_log_probs.tolist(), after[0].reward.item()) == ([-1.0, -2.0], 0.5)


def test_writing_to_one_item_leaves_the_others_alone():
    items = [small_items()[0] for _ in range(3)]
    after = unpack_items(pack_items(items))
    after[1].sequences.fill_(9)
    assert [item.sequences.tolist() for item in after] == [[0, 1, 2], [9, 9, 9], [0, 1, 2]]


def test_a_slice_travels_without_what_it_was_cut_from():
    batch = Experience(torch.zeros(100, 50, dtype=torch.long), torch.zeros(100, 20))
    row = split(batch)[:1]
    assert len(pickle.dumps(pack_items(row))) < 2000 < len(pickle.dumps(row))


def test_what_has_a_gradient_or_gaps_in_memory_is_packed_as_its_numbers():
    item = BufferItem(torch.arange(6)[::2], torch.ones(1).expand(3), values=torch.ones(3, requires_grad=True))
    (after,) = unpack_items(pack_items([item]))
    assert (after.sequences.tolist(), after.action_log_probs.tolist(), after.values.tolist()) == (
        [0, 2, 4], [1.0] * 3, [1.0] * 3,
    )  # fmt: skip
    assert not after.values.requires_grad
    after.action_log_probs[0] = 5  # every number has a place of its own
    assert after.action_log_probs.tolist() == [5.0, 1.0, 1.0]


def test_nothing_is_packed_as_nothing():
    assert unpack_items(pack_items([])) == ()
    assert len(pack_items(small_items())) == 2
