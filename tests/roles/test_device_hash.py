"""The hash of tensors where they are: the same on every device, and any change shows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from proa.roles import device_hash
from proa.roles.device_hash import LANES, device_digest

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def tensors(sizes=(3, 70_001, 12), seed=0):
    chance = torch.Generator().manual_seed(seed)
    dtypes = (torch.float32, torch.bfloat16, torch.uint8)
    return {
        f"t{place}": torch.randint(0, 255, (size,), generator=chance).to(dtypes[place % 3])
        for place, size in enumerate(sizes)
    }


def row_hash_by_hand(data: bytes) -> list[int]:
    """What the module says, in Python's own numbers, which never overflow."""
    data += bytes(-len(data) % (4 * LANES))
    factors = np.random.Philox(key=0).random_raw(LANES) | np.uint64(1)
    numbers = np.frombuffer(data, np.int32).reshape(-1, LANES)
    sums = [sum(int(number) * int(factor) for number, factor in zip(row, factors, strict=True)) for row in numbers]
    return [(value + 2**63) % 2**64 - 2**63 for value in sums]


@pytest.mark.parametrize("device", DEVICES)
def test_a_rows_hash_is_what_is_said_of_it(device):
    data = torch.randint(0, 256, (4 * LANES + 77,), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
    found = device_hash._row_hashes(data.to(device)).tolist()
    assert found == row_hash_by_hand(data.numpy().tobytes())


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_the_same_wherever_they_are_and_however_they_are_cut(device, monkeypatch):
    own = tensors((3, 400_000, 12, 1, 0, 600_001))
    whole = device_digest(own)
    assert device_digest({name: tensor.to(device) for name, tensor in reversed(own.items())}) == whole
    monkeypatch.setattr(device_hash, "TOGETHER", 4 * LANES)
    assert device_digest(own) == whole


@given(place=some.integers(0, 70_000), bit=some.integers(0, 15))
def test_one_changed_bit_always_shows(place, bit):
    before, after = tensors(), tensors()
    after["t1"].view(torch.int16)[place] ^= 1 << bit if bit < 15 else -(1 << 15)
    assert device_digest(after) != device_digest(before)


def test_names_shapes_dtypes_and_order_show():
    own = {"a": torch.zeros(2, 3), "b": torch.ones(4)}
    others = [
        {"a": torch.zeros(3, 2), "b": torch.ones(4)},
        {"a": torch.zeros(2, 3, dtype=torch.int32), "b": torch.ones(4)},
        {"a": torch.zeros(2, 3), "c": torch.ones(4)},
        {"a": torch.zeros(2, 3)},
        {"a": torch.ones(4), "b": torch.zeros(2, 3)},
        {},
    ]
    assert len({device_digest(one) for one in [own, *others]}) == 7
    one, other = (torch.randn(2 * LANES, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert device_digest({"a": torch.cat([one, other])}) != device_digest({"a": torch.cat([other, one])})
