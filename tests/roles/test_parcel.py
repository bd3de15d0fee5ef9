"""Weights as bytes: every dtype and shape comes back, as views of the memory that arrived."""

import pickle

import pytest
import torch

from proa.roles.parcel import unwrap, wrap
from proa.roles.weights import Weights, WeightsError, transport_digest

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
          torch.float32, torch.float64]  # fmt: skip
SHAPES = [(), (0,), (3, 0), (1,), (7,), (2, 3), (2, 1, 3)]


def weights():
    generator = torch.Generator().manual_seed(0)
    return {
        f"{dtype} {shape}": (torch.randn(shape, generator=generator) * 9).to(dtype)
        for dtype in DTYPES
        for shape in SHAPES
    }


def as_from_the_store(parcel):
    """Over a pickle, with arrays that cannot be written to."""
    buffers = []
    pickled = pickle.dumps(parcel, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(pickled, buffers=[bytes(buffer) for buffer in buffers])


@pytest.mark.parametrize("travel", [as_from_the_store, lambda parcel: parcel], ids=["far", "near"])
def test_every_dtype_and_shape_comes_back(travel):
    before = weights()
    after = unwrap(travel(wrap(before)))
    assert list(after) == list(before)
    for name, tensor in before.items():
        assert (after[name].dtype, after[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(after[name], tensor), name
    assert transport_digest(after) == transport_digest(before)


def test_nothing_is_copied_on_either_side():
    tensor = torch.arange(6.0).view(2, 3)
    parcel = wrap({"a": tensor})
    assert unwrap(parcel)["a"].data_ptr() == tensor.data_ptr() == parcel.arrays["a"].ctypes.data


def test_what_has_a_gradient_or_gaps_in_memory_travels_as_its_numbers():
    parameter = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    before = {"parameter": parameter, "turned": parameter.T, "every second": torch.arange(6.0)[::2]}
    after = unwrap(as_from_the_store(wrap(before)))
    for name, tensor in before.items():
        assert after[name].tolist() == tensor.tolist()
        assert after[name].is_contiguous()


@pytest.mark.parametrize("position", [0, 11, 23])
def test_a_damaged_byte_is_found(position):
    before = {"a": torch.arange(6.0).view(2, 3)}
    parcel = wrap({"a": before["a"].clone()})
    Weights(4, unwrap(as_from_the_store(parcel)), transport_digest(before)).check()
    parcel.arrays["a"][position] ^= 1
    with pytest.raises(WeightsError, match="version 4 were damaged"):
        Weights(4, unwrap(as_from_the_store(parcel)), transport_digest(before)).check()
