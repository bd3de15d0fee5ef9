"""A tree of values and tensors comes back with every type and every bit, or is refused with its place."""

import json
import math
import os
import struct
from collections import OrderedDict, defaultdict
from enum import IntEnum

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.record.faulty_disk import inside

from proa.record.checkpoints import CheckpointError
from proa.record.state_files import StateError, read_state, write_state

torch.set_num_threads(1)


def there_and_back(folder, value):
    write_state(folder, {"value": value})
    return read_state(folder)["value"]


def same(a, b) -> bool:
    """Of the same types all the way down, with the same bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, dict):
        return [*map(type, a)] == [*map(type, b)] and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


PLAIN = [
    None, True, False, 0, 1, -1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**5000, -(10**5000), 0.0, -0.0, 0.1,
    5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan, struct.unpack(">d", b"\xff\xf8\0\0\0\0\0\x07")[0],
    "", "$tuple", "é😀", "\ud800", "a\0b", b"", b"\0\xff", (), [], {}, set(), frozenset(),
    (1, [2, (3,)]), [(1,), [1]], {1: "int", "1": "str"}, {"$tensor": "x"}, {2**70: 1}, {-1: {}},
    {"b": 1, "a": 2}, OrderedDict(b=1, a=OrderedDict()), {1, "a", b"a", None, 2.5, (1, (2,)), frozenset({3})},
    frozenset({"\ud800", 2**80}), {"list": [None, {"x": (True, 1)}]},
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_a_plain_value_comes_back_with_its_type_and_its_bits(value, tmp_path):
    assert same(there_and_back(tmp_path / "state", value), value)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(st.characters(), max_size=5) | st.integers(), inner, max_size=4)
        | st.sets(st.integers() | st.text(max_size=3), max_size=4)
    ),
    max_leaves=12,
)


@given(TREES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tree_of_plain_values_comes_back(tmp_path, tree):
    folder = tmp_path / f"state_{len(list(tmp_path.iterdir()))}"
    assert same(there_and_back(folder, tree), tree)


DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
]


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES])
def test_a_tensor_comes_back_with_its_type_its_shape_and_its_bits(dtype, tmp_path):
    for number, shape in enumerate([(), (0,), (3, 0, 2), (5,), (2, 3)]):
        size = math.prod(shape) * dtype.itemsize
        raw = (torch.arange(size) * 37 % (2 if dtype == torch.bool else 251)).to(torch.uint8)
        tensor = raw.view(dtype).reshape(shape)
        back = there_and_back(tmp_path / f"state-{number}", tensor)
        assert (back.dtype, back.shape, back.device.type) == (dtype, tensor.shape, "cpu")
        assert torch.equal(back.reshape(-1).view(torch.uint8), raw), shape


def test_a_tensor_keeps_the_bits_of_its_nans(tmp_path):
    bits = torch.tensor([0x7FC00001, -0x3FFFFF, 0x7F800000, -0x80000000], dtype=torch.int32)
    assert torch.equal(there_and_back(tmp_path / "state", bits.view(torch.float32)).view(torch.int32), bits)


def test_views_come_back_as_what_they_show(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    views = [
        whole,
        whole.T,
        whole[1:],
        whole[:, ::2],
        whole[0, 0],
        whole.expand(2, 3, 4),
        torch.ones(2).to(torch.cfloat).conj(),
    ]
    back = there_and_back(tmp_path / "state", views)
    assert all(torch.equal(a, b) for a, b in zip(back, views, strict=True))
    back[0].zero_()
    assert torch.equal(back[2], whole[1:])


def test_one_tensor_at_two_places_is_written_once_and_is_one_again(tmp_path):
    tensor, array = torch.arange(1000.0), np.arange(3)
    back = there_and_back(tmp_path / "state", {"a": tensor, "b": [tensor], "c": tensor.clone(), "d": (array, array)})
    assert back["a"] is back["b"][0]
    assert back["a"] is not back["c"]
    assert torch.equal(back["a"], tensor)
    assert torch.equal(back["c"], tensor)
    assert back["d"][0] is back["d"][1]
    assert len(load_file(tmp_path / "state" / "tensors.safetensors")) == 3


def test_a_parameter_comes_back_as_a_plain_tensor(tmp_path):
    back = there_and_back(tmp_path / "state", torch.nn.Parameter(torch.ones(2)))
    assert type(back) is torch.Tensor
    assert not back.requires_grad
    assert torch.equal(back, torch.ones(2))


def test_what_was_read_does_not_hang_on_the_file(tmp_path):
    back = there_and_back(tmp_path / "state", torch.arange(5.0))
    path = tmp_path / "state" / "tensors.safetensors"
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert back.add_(1).tolist() == [1, 2, 3, 4, 5]


ARRAYS = [
    np.arange(6.0).reshape(2, 3), np.arange(6, dtype=">i2").reshape(3, 2).T, np.array([], dtype=np.uint8), np.array(5),
    np.zeros((0, 3)), np.array(["é", "long"]), np.array([b"a"]), np.array(["2020-01-01"], dtype="datetime64[D]"),
    np.array([True, False]), np.array([1 + 2j]), np.float32(0.1), np.float64(-0.0), np.int8(-3), np.bool_(True),
    np.str_("é"), np.random.Generator(np.random.MT19937(3)).bit_generator.state["state"]["key"],
]  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{type(array).__name__}-{array.dtype}-{array.shape}")
def test_an_array_comes_back_with_its_type_its_shape_and_its_bits(array, tmp_path):
    back = there_and_back(tmp_path / "state", array)
    assert (type(back), back.dtype, back.shape) == (type(array), array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert not isinstance(back, np.ndarray) or back.flags.writeable


def test_random_streams_and_an_optimizer_come_back(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    stream, numbers = torch.Generator().manual_seed(3), np.random.default_rng(3)
    tree = {"optimizer": optimizer.state_dict(), "stream": stream.get_state(), "numpy": numbers.bit_generator.state}
    write_state(tmp_path / "state", tree)
    back = read_state(tmp_path / "state")
    assert list(back["optimizer"]["state"]) == [0, 1]
    assert torch.equal(back["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    assert back["optimizer"]["param_groups"] == tree["optimizer"]["param_groups"]
    other = np.random.default_rng(0)
    other.bit_generator.state = back["numpy"]
    assert other.random() == numbers.random()
    assert torch.equal(
        torch.rand(2, generator=torch.Generator().set_state(back["stream"])), torch.rand(2, generator=stream)
    )


def test_the_same_state_is_the_same_files(tmp_path):
    words = [f"word {i}" for i in range(50)]
    for name, order in (("a", words), ("b", words[::-1])):
        write_state(tmp_path / name, {"words": set(order), "weights": torch.ones(3)})
    for file in ("state.json", "tensors.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_state_without_tensors_is_one_file_of_its_owner(tmp_path):
    write_state(tmp_path / "state", {"a": 1})
    assert inside(tmp_path / "state") == ["state.json"]
    assert (tmp_path / "state" / "state.json").stat().st_mode & 0o777 == 0o600


class Handle:
    pass


class Colour(IntEnum):
    RED = 1


class Subclass(torch.Tensor):
    pass


SELF = []
SELF.append(SELF)

UNSAVABLE = [
    ({"Foo": {"handle": Handle()}}, r"state\.callbacks\.Foo\.handle: a <class .*Handle'> cannot be saved"),
    ({"Foo": [1, (2, Handle())]}, r"state\.callbacks\.Foo\[1\]\[1\]: a <class .*Handle'>"),
    ({"colour": Colour.RED}, r"state\.callbacks\.colour: a <enum 'Colour'>"),
    ({"counts": defaultdict(int)}, r"state\.callbacks\.counts: a <class 'collections\.defaultdict'>"),
    ({(1, 2): 3}, r"state\.callbacks: a key that is a <class 'tuple'>"),
    ({True: 3}, r"state\.callbacks: a key that is a <class 'bool'>"),
    ({"function": len}, r"state\.callbacks\.function: a <class 'builtin_function"),
    ({"dtype": torch.float32}, r"state\.callbacks\.dtype: a <class 'torch\.dtype'>"),
    ({"set": {torch.ones(1)}}, r"state\.callbacks\.set: a <class 'torch\.Tensor'> in a set"),
    ({"set": {(1, np.float64(2))}}, r"state\.callbacks\.set: a <class 'numpy\.float64'> in a set"),
    ({"sparse": torch.ones(2).to_sparse()}, r"state\.callbacks\.sparse: a tensor that is torch\.sparse_coo"),
    ({"meta": torch.ones(2, device="meta")}, r"state\.callbacks\.meta: a tensor that is meta"),
    ({"mine": torch.ones(2).as_subclass(Subclass)}, r"state\.callbacks\.mine: a <class .*Subclass'>"),
    ({"objects": np.array([None])}, r"state\.callbacks\.objects: a <class 'numpy\.ndarray'>"),
    ({"records": np.zeros(2, dtype=[("a", "i4")])}, r"state\.callbacks\.records: a <class 'numpy\.ndarray'>"),
    ({"masked": np.ma.array([1])}, r"state\.callbacks\.masked: a <class 'numpy\.ma"),
    ({"self": SELF}, r"state\.callbacks\.self\[0\].*: containers nested deeper than 100"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "words"), UNSAVABLE, ids=[words[:40] for _, words in UNSAVABLE])
def test_what_cannot_be_saved_is_refused_with_its_place_before_anything_is_written(value, words, tmp_path):
    with pytest.raises(StateError, match=words):
        write_state(tmp_path / "state", {"step": 1, "callbacks": value})
    assert list(tmp_path.iterdir()) == []


def test_a_deep_tree_that_is_allowed_comes_back(tmp_path):
    deep = 1
    for _ in range(99):
        deep = [deep]
    assert there_and_back(tmp_path / "state", deep) == deep


def test_a_state_of_the_first_format_is_read(tmp_path):
    """As it was written then; later versions must go on reading it."""
    (tmp_path / "state.json").write_text(
        '{"format":1,"tree":{"step":3,"pair":{"$tuple":[{"$float":"7ff8000000000000"},{"$int":"-0x8000000000000001"}]},'
        '"names":{"$dict":[[1,{"$set":["a"]}],["$x",{"$frozenset":[]}]]},"text":{"$str":"7aCA"},"raw":{"$bytes":"AP8="},'
        '"ordered":{"$ordered":[["a",1]]},"w":{"$tensor":"0:state.w","dtype":"complex128","shape":[1]},'
        '"n":{"$array":"1:state.n","dtype":"<i2","shape":[2]},"s":{"$scalar":"2:state.s","dtype":"|b1","shape":[]}}}'
    )
    raw = [torch.zeros(16, dtype=torch.uint8), torch.tensor([1, 0, 2, 0]).byte(), torch.tensor([1]).byte()]
    save_file({f"{i}:state.{name}": raw[i] for i, name in enumerate("wns")}, tmp_path / "tensors.safetensors")
    state = read_state(tmp_path)
    assert math.isnan(state["pair"][0])
    assert state["pair"][1] == -(2**63) - 1
    assert (state["step"], state["names"], state["text"], state["raw"], state["ordered"]) == (
        3, {1: {"a"}, "$x": frozenset()}, "\ud800", b"\0\xff", OrderedDict(a=1),
    )  # fmt: skip
    assert torch.equal(state["w"], torch.zeros(1, dtype=torch.complex128))
    assert state["n"].tolist() == [1, 2]
    assert state["s"] is np.True_


def edit(folder, **changes):
    content = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(content | changes))


def add_a_tensor(folder):
    path = folder / "tensors.safetensors"
    save_file(load_file(path) | {"stranger": torch.ones(1)}, path)


def link(path):
    path.rename(path.with_name("x"))
    path.symlink_to("x")


def tensor(**changes):
    return {"w": {"$tensor": "0:state.w", "dtype": "float32", "shape": [2]} | changes}


def array(**changes):
    return {"w": {"$array": "0:state.w"} | changes}


BROKEN = {
    "newer version of Proa .format 2, and this one reads up to 1": lambda folder: edit(folder, format=2),
    "it has no format": lambda folder: edit(folder, format=None),
    "it has no format ": lambda folder: (folder / "state.json").write_text("[]"),
    "there is no state.json": lambda folder: (folder / "state.json").unlink(),
    "state.json cannot be read": lambda folder: os.truncate(folder / "state.json", 20),
    "tree is a list": lambda folder: edit(folder, tree=[tensor()]),
    "the tensor 0:state.w is missing": lambda folder: (folder / "tensors.safetensors").unlink(),
    "the tensor other is missing": lambda folder: edit(folder, tree=tensor(**{"$tensor": "other"})),
    "tensors that state.json does not name: stranger": add_a_tensor,
    "tensors that state.json does not name: 0:state.w": lambda folder: edit(folder, tree={}),
    "tensors.safetensors cannot be read": lambda folder: os.truncate(folder / "tensors.safetensors", 30),
    "torch.float32 .2. instead of torch.float64": lambda folder: edit(folder, tree=tensor(dtype="float64")),
    "instead of torch.float32 .1, 2.": lambda folder: edit(folder, tree=tensor(shape=[1, 2])),
    "unknown dtype load": lambda folder: edit(folder, tree=tensor(dtype="load")),
    "arrays of dtype O are not supported": lambda folder: edit(folder, tree=array(dtype="O", shape=[2])),
    "which is not <i4 .9.": lambda folder: edit(folder, tree=array(dtype="<i4", shape=[9])),
    "does not describe a state: unknown tag .pickle": lambda folder: edit(folder, tree={"w": {"$pickle": "x"}}),
    "does not describe a state": lambda folder: edit(folder, tree={"w": {"$float": "zz"}}),
    "json is a link": lambda folder: link(folder / "state.json"),
    "tensors.safetensors is a link": lambda folder: link(folder / "tensors.safetensors"),
}  # fmt: skip


@pytest.mark.parametrize("words", BROKEN)
def test_a_broken_state_is_refused_with_the_reason(words, tmp_path):
    write_state(tmp_path, {"w": torch.ones(2)})
    BROKEN[words](tmp_path)
    with pytest.raises(CheckpointError, match=words.strip()):
        read_state(tmp_path)


def test_bytes_that_do_not_make_up_a_tensor_are_refused(tmp_path):
    write_state(tmp_path, {"w": torch.zeros(3, dtype=torch.uint8)})
    edit(tmp_path, tree=tensor(dtype="complex128", shape=[1]))
    with pytest.raises(StateError, match="does not describe a state"):
        read_state(tmp_path)


def test_a_text_that_is_a_secret_comes_back_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED_API_KEY", "planted-in-a-state")
    saved = {"cursor": "planted-in-a-state", "url": "https://me:pass@host/?token=abc", "planted-in-a-state": [1]}
    assert there_and_back(tmp_path / "state", saved) == saved
