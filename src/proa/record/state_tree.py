"""How a nested tree of plain values and tensors is said in JSON, with the tensors beside it.

What JSON can say is said plainly; the rest is an object with one key that begins with `$`:

>>> Encoder().encode({"step": 3, "betas": (0.9, float("inf"))}, "state")
{'step': 3, 'betas': {'$tuple': [0.9, {'$float': '7ff0000000000000'}]}}

Every value comes back with its type and its bits. What has no such form is refused, with its place in the tree.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .durable import CheckpointError

if TYPE_CHECKING:
    import torch

MOST_DEEP = 100
"""So many containers may lie within each other; one that holds itself is found this way too."""
_PLAIN_INT = 1 << 63
_ARRAY_KINDS = "biufcmMSU"
"""Kinds of numpy's dtypes whose bytes are their values; an object's are not."""


class StateError(CheckpointError):
    """A tree cannot be saved, or what was saved cannot be read."""


class Encoder:
    """Turns values into what JSON can say, and collects the tensors on the way."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        """By the ids of the leaves, which the tree keeps alive."""
        self._storages: set[int] = set()

    def encode(self, value: Any, place: str, depth: int = 0) -> Any:
        """`place` is where the value stands in the tree, for whoever has to be told that it cannot be saved."""
        if depth > MOST_DEEP:
            raise StateError(f"{_short(place)}: more than {MOST_DEEP} containers within each other cannot be saved")
        plain = _ENCODED_PLAIN.get(type(value))
        if plain is not None:
            return plain(value)
        if type(value) in (dict, OrderedDict):
            return self._encode_dict(value, place, depth)
        if type(value) in (list, tuple):
            inner = [self.encode(one, f"{place}[{i}]", depth + 1) for i, one in enumerate(value)]
            return inner if type(value) is list else {"$tuple": inner}
        if type(value) in (set, frozenset):
            return self._encode_set(value, place, depth)
        return self._encode_array(value, place)

    def _encode_dict(self, value: dict[Any, Any], place: str, depth: int) -> Any:
        for key in value:
            if type(key) not in (str, int):
                raise StateError(f"{place}: a key that is a {type(key)} cannot be saved; keys are str or int: {key!r}")
        pairs = {key: self.encode(inner, f"{place}.{key}", depth + 1) for key, inner in value.items()}
        if type(value) is dict and all(_is_plain_key(key) for key in pairs):
            return pairs
        tag = "$dict" if type(value) is dict else "$ordered"
        return {tag: [[_ENCODED_PLAIN[type(key)](key), inner] for key, inner in pairs.items()]}

    def _encode_set(self, value: set[Any] | frozenset[Any], place: str, depth: int) -> Any:
        for member in value:
            _refuse_in_a_set(member, place)
        members = [self.encode(member, f"{place}{{…}}", depth + 1) for member in value]
        # In a fixed order, so that the same state is the same file.
        return {"$set" if type(value) is set else "$frozenset": sorted(members, key=json.dumps)}

    def _encode_array(self, value: Any, place: str) -> Any:
        import numpy as np
        import torch

        if isinstance(value, torch.Tensor):
            name = self._names.get(id(value)) or self._add(value, _as_stored(value, place), place)
            return {"$tensor": name, "dtype": _dtype_name(value), "shape": list(value.shape)}
        if (type(value) is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in _ARRAY_KINDS:
            raw = torch.from_numpy(np.frombuffer(bytearray(value.tobytes()), dtype=np.uint8))
            name = self._names.get(id(value)) or self._add(value, raw, place)
            tag = "$array" if type(value) is np.ndarray else "$scalar"
            return {tag: name, "dtype": value.dtype.str, "shape": list(value.shape)}
        raise StateError(f"{place}: a {type(value)} cannot be saved; save plain values, tensors and arrays")

    def _add(self, value: Any, stored: torch.Tensor, place: str) -> str:
        """Take a tensor among those to be written. Each has memory of its own there."""
        storage = stored.untyped_storage().data_ptr()
        if storage in self._storages:
            stored = stored.clone()
            storage = stored.untyped_storage().data_ptr()
        if stored.numel():
            self._storages.add(storage)
        name = f"{len(self.tensors)}:{place.encode('ascii', 'backslashreplace').decode()}"
        self.tensors[name] = stored
        self._names[id(value)] = name
        return name


class Decoder:
    """Turns what JSON said into the values again."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._made: dict[tuple[str, str], Any] = {}
        self._seen: set[str] = set()

    @property
    def unnamed(self) -> str:
        """Tensors that were in the file and that nothing has named."""
        return ", ".join(sorted(self._tensors.keys() - self._seen))

    def decode(self, said: Any) -> Any:
        if isinstance(said, list):
            return [self.decode(one) for one in said]
        if not isinstance(said, dict):
            return said
        tag = next(iter(said), "")
        if not tag.startswith("$"):
            return {key: self.decode(inner) for key, inner in said.items()}
        if tag in _DECODED_PLAIN:
            return _DECODED_PLAIN[tag](said[tag])
        if tag in _DECODED_CONTAINER:
            return _DECODED_CONTAINER[tag](self.decode(said[tag]))
        if tag not in ("$tensor", "$array", "$scalar"):
            raise ValueError(f"{tag} is not known")
        return self._tensor(tag, said)

    def _tensor(self, tag: str, said: dict[str, Any]) -> Any:
        name = said[tag]
        if name not in self._tensors:
            raise ValueError(f"the tensor {name} is not there")
        self._seen.add(name)
        if (tag, name) not in self._made:  # one tensor at two places is one tensor again
            restore = _restored_tensor if tag == "$tensor" else _restored_array
            self._made[tag, name] = restore(self._tensors[name], said["dtype"], said["shape"])
        made = self._made[tag, name]
        return made[()] if tag == "$scalar" else made


def _encoded_int(value: int) -> Any:
    # In hexadecimal because Python refuses to write very long numbers in decimal.
    return value if -_PLAIN_INT <= value < _PLAIN_INT else {"$int": hex(value)}


def _encoded_float(value: float) -> Any:
    return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}


def _encoded_str(value: str) -> Any:
    return value if _has_no_surrogates(value) else {"$str": _base64(value.encode("utf-8", "surrogatepass"))}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


_ENCODED_PLAIN: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _encoded_int,
    float: _encoded_float,
    str: _encoded_str,
    bytes: lambda value: {"$bytes": _base64(value)},
}
_DECODED_PLAIN: dict[str, Callable[[Any], Any]] = {
    "$int": lambda said: int(said, 16),
    "$float": lambda said: struct.unpack(">d", bytes.fromhex(said))[0],
    "$str": lambda said: base64.b64decode(said, validate=True).decode("utf-8", "surrogatepass"),
    "$bytes": lambda said: base64.b64decode(said, validate=True),
}
_DECODED_CONTAINER: dict[str, Callable[[Any], Any]] = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$dict": dict,
    "$ordered": OrderedDict,
}


def _is_plain_key(key: Any) -> bool:
    return type(key) is str and not key.startswith("$") and _has_no_surrogates(key)


def _has_no_surrogates(text: str) -> bool:
    """JSON would join two that follow each other to one character."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _refuse_in_a_set(member: Any, place: str) -> None:
    if type(member) in (tuple, frozenset):
        for inner in member:
            _refuse_in_a_set(inner, place)
    elif type(member) not in _ENCODED_PLAIN:
        raise StateError(f"{place}: a {type(member)} in a set cannot be saved; sets hold plain values")


def _as_stored(value: torch.Tensor, place: str) -> torch.Tensor:
    """The tensor as it goes to the file: on the CPU, in one piece, of a type that the file knows."""
    import torch

    if type(value) is not torch.Tensor and not isinstance(value, torch.nn.Parameter):
        raise StateError(f"{place}: a {type(value)} cannot be saved; save a plain tensor")
    if value.layout != torch.strided or value.is_meta or value.is_quantized or value.is_nested:
        what = "meta" if value.is_meta else "quantized" if value.is_quantized else str(value.layout)
        raise StateError(f"{place}: a tensor that is {what} cannot be saved; make it a dense one")
    whole = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return whole if value.dtype in _native_dtypes() else whole.reshape(-1).view(torch.uint8)


def _native_dtypes() -> frozenset[torch.dtype]:
    """What the file format has a name for; others go as their bytes."""
    import torch

    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
    return frozenset(getattr(torch, name) for name in names.split())


def _dtype_name(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _restored_tensor(stored: torch.Tensor, dtype_name: str, shape: list[int]) -> torch.Tensor:
    import torch

    dtype = getattr(torch, dtype_name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{dtype_name} is no type of a tensor")
    if dtype not in _native_dtypes() and stored.dtype == torch.uint8:
        stored = stored.view(dtype).reshape(shape)
    if stored.dtype != dtype or list(stored.shape) != shape:
        raise ValueError(f"a tensor is {stored.dtype} {list(stored.shape)} and should be {dtype} {shape}")
    return stored


def _restored_array(stored: torch.Tensor, dtype_name: str, shape: list[int]) -> Any:
    import numpy as np

    dtype = np.dtype(dtype_name)
    if dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"{dtype_name} is no type of an array that is saved")
    if math.prod(shape) * dtype.itemsize != stored.numel():
        raise ValueError(f"an array of {stored.numel()} bytes should be {dtype_name} {shape}")
    return np.ndarray(shape, dtype, buffer=stored.numpy().tobytes()).copy()


def _short(place: str) -> str:
    return place if len(place) < 100 else f"{place[:60]}…"
