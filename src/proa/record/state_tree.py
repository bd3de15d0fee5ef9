"""Encodes a nested tree of plain values and tensors as JSON, with the tensors beside it.

Values that JSON supports stay as they are; all others become an object with one key that begins with `$`:

>>> Encoder().encode({"step": 3, "betas": (0.9, float("inf"))}, "state")
{'step': 3, 'betas': {'$tuple': [0.9, {'$float': '7ff0000000000000'}]}}

Every value is restored with its type and its bits. Other types are refused, with their place in the tree.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from .durable import CheckpointError

if TYPE_CHECKING:
    import torch

MAX_DEPTH = 100
"""How deep containers may be nested; this also finds one that contains itself."""
_PLAIN_INT = 1 << 63
_ARRAY_KINDS = "biufcmMSU"
"""Kinds of numpy dtypes that are stored as bytes; objects are not."""


class StateError(CheckpointError):
    """A tree cannot be saved, or what was saved cannot be read."""


class Encoder:
    """Encodes values and collects their tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        """By the ids of the leaves, which the tree keeps alive."""
        self._storages: set[int] = set()

    def encode(self, value: Any, place: str, depth: int = 0) -> Any:
        """The value as JSON. `place` is its path in the tree, for error messages."""
        if depth > MAX_DEPTH:
            raise StateError(f"{place[:60]}…: containers nested deeper than {MAX_DEPTH} cannot be saved")
        if type(value) in _PLAIN_TYPES:
            return _encode_plain(value)
        if type(value) in (dict, OrderedDict):
            return self._encode_dict(value, place, depth)
        if type(value) in (list, tuple):
            inner = [self.encode(one, f"{place}[{i}]", depth + 1) for i, one in enumerate(value)]
            return inner if type(value) is list else {"$tuple": inner}
        if type(value) in (set, frozenset):
            for member in value:
                _check_set_member(member, place)
            members = [self.encode(member, f"{place}{{…}}", depth + 1) for member in value]
            # Sorted, so that the same state gives the same file.
            return {"$set" if type(value) is set else "$frozenset": sorted(members, key=json.dumps)}
        return self._encode_array(value, place)

    def _encode_dict(self, value: dict[Any, Any], place: str, depth: int) -> Any:
        for key in value:
            if type(key) not in (str, int):
                raise StateError(f"{place}: a key that is a {type(key)} cannot be saved; keys are str or int: {key!r}")
        pairs = {key: self.encode(inner, f"{place}.{key}", depth + 1) for key, inner in value.items()}
        if type(value) is dict and all(type(key) is str and not key.startswith("$") for key in pairs):
            return pairs
        tag = "$dict" if type(value) is dict else "$ordered"
        return {tag: [[_encode_plain(key), inner] for key, inner in pairs.items()]}

    def _encode_array(self, value: Any, place: str) -> Any:
        import numpy as np
        import torch

        if isinstance(value, torch.Tensor):
            name = self._names.get(id(value)) or self._add(value, _storable(value, place), place)
            return {"$tensor": name, "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        if (type(value) is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in _ARRAY_KINDS:
            raw = torch.from_numpy(np.frombuffer(bytearray(value.tobytes()), dtype=np.uint8))
            name = self._names.get(id(value)) or self._add(value, raw, place)
            tag = "$array" if type(value) is np.ndarray else "$scalar"
            return {tag: name, "dtype": value.dtype.str, "shape": list(value.shape)}
        raise StateError(f"{place}: a {type(value)} cannot be saved; save plain values, tensors and arrays")

    def _add(self, value: Any, stored: torch.Tensor, place: str) -> str:
        """Add a tensor to those to be written; safetensors does not allow two that share memory."""
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
    """Restores the values that an `Encoder` encoded."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._made: dict[tuple[str, str], Any] = {}
        self._seen: set[str] = set()

    @property
    def unnamed(self) -> str:
        """The tensors of the file that the JSON did not refer to."""
        return ", ".join(sorted(self._tensors.keys() - self._seen))

    def decode(self, encoded: Any) -> Any:
        if isinstance(encoded, list):
            return [self.decode(one) for one in encoded]
        if not isinstance(encoded, dict):
            return encoded
        tag = next(iter(encoded), "")
        if not tag.startswith("$"):
            return {key: self.decode(inner) for key, inner in encoded.items()}
        if tag in _DECODED_PLAIN:
            return _DECODED_PLAIN[tag](encoded[tag])
        if tag in _DECODED_CONTAINER:
            return _DECODED_CONTAINER[tag](self.decode(encoded[tag]))
        if tag not in ("$tensor", "$array", "$scalar"):
            raise ValueError(f"unknown tag {tag}")
        return self._tensor(tag, encoded)

    def _tensor(self, tag: str, encoded: dict[str, Any]) -> Any:
        name = encoded[tag]
        if name not in self._tensors:
            raise ValueError(f"the tensor {name} is missing")
        self._seen.add(name)
        if (tag, name) not in self._made:  # one tensor at two places stays one tensor
            restore = _restore_tensor if tag == "$tensor" else _restore_array
            self._made[tag, name] = restore(self._tensors[name], encoded["dtype"], encoded["shape"])
        made = self._made[tag, name]
        return made[()] if tag == "$scalar" else made


Plain: TypeAlias = "bool | int | float | str | bytes | None"
_PLAIN_TYPES = frozenset({type(None), bool, int, float, str, bytes})


def _encode_plain(value: Plain) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, int) and not -_PLAIN_INT <= value < _PLAIN_INT:
        return {"$int": hex(value)}  # Python refuses to write very long numbers in decimal
    return value


_DECODED_PLAIN: dict[str, Callable[[str], Plain]] = {
    "$int": lambda encoded: int(encoded, 16),
    "$float": lambda encoded: struct.unpack(">d", bytes.fromhex(encoded))[0],
    "$bytes": lambda encoded: base64.b64decode(encoded, validate=True),
    # Older versions wrote text with lone surrogates like this.
    "$str": lambda encoded: base64.b64decode(encoded, validate=True).decode("utf-8", "surrogatepass"),
}
_DECODED_CONTAINER: dict[str, Callable[[Any], Any]] = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$dict": dict,
    "$ordered": OrderedDict,
}


def _check_set_member(member: Any, place: str) -> None:
    if type(member) in (tuple, frozenset):
        for inner in member:
            _check_set_member(inner, place)
    elif type(member) not in _PLAIN_TYPES:
        raise StateError(f"{place}: a {type(member)} in a set cannot be saved; sets hold plain values")


def _storable(value: torch.Tensor, place: str) -> torch.Tensor:
    """The tensor as it is stored: on the CPU, contiguous, of a dtype that safetensors supports."""
    import torch

    if type(value) is not torch.Tensor and not isinstance(value, torch.nn.Parameter):
        raise StateError(f"{place}: a {type(value)} cannot be saved; save a plain tensor")
    if value.layout != torch.strided or value.is_meta or value.is_quantized or value.is_nested:
        what = "meta" if value.is_meta else "quantized" if value.is_quantized else str(value.layout)
        raise StateError(f"{place}: a tensor that is {what} cannot be saved; make it dense")
    whole = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return whole if value.dtype in _native_dtypes() else whole.reshape(-1).view(torch.uint8)


def _native_dtypes() -> frozenset[torch.dtype]:
    """Dtypes that safetensors supports; others are stored as bytes."""
    import torch

    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
    return frozenset(getattr(torch, name) for name in names.split())


def _restore_tensor(stored: torch.Tensor, dtype_name: str, shape: list[int]) -> torch.Tensor:
    import torch

    dtype = getattr(torch, dtype_name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {dtype_name}")
    if dtype not in _native_dtypes() and stored.dtype == torch.uint8:
        stored = stored.view(dtype).reshape(shape)
    if stored.dtype != dtype or list(stored.shape) != shape:
        raise ValueError(f"a tensor is {stored.dtype} {list(stored.shape)} instead of {dtype} {shape}")
    return stored


def _restore_array(stored: torch.Tensor, dtype_name: str, shape: list[int]) -> Any:
    import numpy as np

    dtype = np.dtype(dtype_name)
    if dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"arrays of dtype {dtype_name} are not supported")
    if math.prod(shape) * dtype.itemsize != stored.numel():
        raise ValueError(f"an array has {stored.numel()} bytes, which is not {dtype_name} {shape}")
    return np.ndarray(shape, dtype, buffer=stored.numpy().tobytes()).copy()
