"""The weights of a run on Ray: in the object store for makers anywhere, on the trainer's GPU for those that share it.

Weights published from a GPU stay there, in one piece of memory for each version. Makers on the same GPU get its handle
(CUDA IPC) and copy from it into their engine without the host. If a maker elsewhere needs a version, it is copied to
the object store, once.

The pieces are reused for later versions, and not freed during the run: there is no count of the makers that have opened
them, which a killed maker would leave wrong. A version is kept as long as a lease names it; a maker that reads it later
finds another version there, which the digest shows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import ray
import torch
from torch.multiprocessing.reductions import reduce_tensor

from ...roles.parcel import Parcel, unwrap, wrap
from ...roles.weights import PUBLISHING_THREADS, transport_digest

log = logging.getLogger("proa.runtime")

ALIGNMENT = 256
"""Alignment of tensors in bytes, for the fastest kernels."""


class Place(NamedTuple):
    """The place of one tensor in a piece of memory."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int
    size: int


@dataclass(frozen=True)
class SharedMemory:
    """A handle for another process to read tensors in the memory of the same GPU."""

    opening: tuple[Any, ...]
    places: tuple[Place, ...]

    def open(self) -> dict[str, torch.Tensor]:
        """The tensors, which belong to the other process and must not be changed."""
        rebuild, arguments = self.opening
        return _views(rebuild(*arguments), self.places)


Offer: TypeAlias = "tuple[SharedMemory | ray.ObjectRef[Parcel], str]"
"""A reference to weights, and their digest."""


class Kept(Protocol):
    """One version on the shelf."""

    def offer(self, gpu: str) -> Offer:
        """A reference for a maker on that GPU."""


@dataclass(frozen=True)
class InObjectStore:
    """A version in Ray's object store, shared by any number of makers."""

    parcel: ray.ObjectRef[Parcel]
    digest: str

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> InObjectStore:
        on_cpu = {name: tensor.to("cpu").contiguous() for name, tensor in tensors.items()}
        digest = transport_digest(on_cpu, threads=PUBLISHING_THREADS)
        return cls(ray.put(wrap(on_cpu)), digest)

    def offer(self, gpu: str) -> Offer:
        return self.parcel, self.digest


@dataclass
class OnGPU:
    """A version in one piece of a GPU's memory."""

    memory: torch.Tensor
    places: tuple[Place, ...]
    digest: str
    gpu: str
    opening: tuple[Any, ...] | None
    """The handle for other processes; None if this machine does not allow sharing."""
    _elsewhere: InObjectStore | None = None
    _copying: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, gpu: str) -> Offer:
        if gpu == self.gpu and self.opening is not None:
            return SharedMemory(self.opening, self.places), self.digest
        with self._copying:
            if self._elsewhere is None:
                self._elsewhere = InObjectStore.of(_views(self.memory, self.places))
            return self._elsewhere.offer(gpu)


class RayShelf:
    """Versions on the trainer's GPU, or in the object store."""

    def __init__(self) -> None:
        self._free: list[tuple[torch.Tensor, tuple[Any, ...] | None]] = []

    def put(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Kept, str]:
        if not tensors or not all(tensor.is_cuda for tensor in tensors.values()):
            stored = InObjectStore.of(tensors)
            return stored, stored.digest
        places = _places(tensors)
        memory, opening = self._memory(places[-1].first + places[-1].size, next(iter(tensors.values())).device)
        copies = _views(memory, places)
        for name, copy in copies.items():
            copy.copy_(tensors[name])
        digest = transport_digest(copies)  # it waits for the copies
        return OnGPU(memory, places, digest, gpu_of(memory.device), opening), digest

    def _memory(self, size: int, device: torch.device) -> tuple[torch.Tensor, tuple[Any, ...] | None]:
        for number, (memory, _) in enumerate(self._free):
            if memory.numel() == size and memory.device == device:
                return self._free.pop(number)
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        try:
            return memory, reduce_tensor(memory)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            log.warning("weights go through the host: this GPU's memory cannot be shared between processes (%s)", error)
            return memory, None

    def get(self, reference: Kept) -> Mapping[str, torch.Tensor]:
        if isinstance(reference, OnGPU):
            return {name: one.cpu() for name, one in _views(reference.memory, reference.places).items()}
        assert isinstance(reference, InObjectStore)
        return unwrap(ray.get(reference.parcel))

    def drop(self, reference: Kept) -> None:
        if isinstance(reference, OnGPU):
            self._free.append((reference.memory, reference.opening))


def _places(tensors: Mapping[str, torch.Tensor]) -> tuple[Place, ...]:
    places, first = [], 0
    for name, tensor in tensors.items():
        places.append(Place(name, tensor.dtype, tuple(tensor.shape), first, tensor.nbytes))
        first += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(places)


def _views(memory: torch.Tensor, places: tuple[Place, ...]) -> dict[str, torch.Tensor]:
    return {
        place.name: memory[place.first : place.first + place.size].view(place.dtype).view(place.shape)
        for place in places
    }


def gpu_of(device: torch.device | None) -> str:
    """The UUID of a GPU, the same in every process; empty for other devices."""
    if device is None or device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)
