"""The weights of a run on Ray: in the object store for makers anywhere, on the trainer's GPU for those that share it.

What is published from a GPU stays there, in one piece of memory for each version, of which makers on the same GPU are
told the handle (CUDA IPC): they copy from it into their engine, and the host sees nothing of it. Only where a maker
elsewhere asks for a version is it copied to the object store, once.

The pieces are used again for later versions, and not given back while the run lasts: there is no counting of who has
opened them, which a maker that is killed would spoil. A version is kept as long as a lease names it; a maker that comes
later than that finds another version there, which the digest tells it.
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
"""Where tensors begin: what the fastest kernels want."""


class Place(NamedTuple):
    """Where one tensor lies in a piece of memory."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int
    size: int


@dataclass(frozen=True)
class SharedMemory:
    """What another process needs to read tensors in the memory of a GPU that both use."""

    opening: tuple[Any, ...]
    places: tuple[Place, ...]

    def open(self) -> dict[str, torch.Tensor]:
        """The tensors. They belong to the other process, and must not be changed."""
        rebuild, arguments = self.opening
        return _views(rebuild(*arguments), self.places)


Offer: TypeAlias = "tuple[SharedMemory | ray.ObjectRef[Parcel], str]"
"""Where weights are found, and their digest there."""


class Kept(Protocol):
    """One version on the shelf."""

    def offer(self, gpu: str) -> Offer:
        """Where a maker on that GPU finds it."""


@dataclass(frozen=True)
class InObjectStore:
    """A version in Ray's object store, once for any number of makers."""

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
    """How others open the memory; None where this machine does not allow it."""
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
    """The name that a GPU has in every process; empty for everything else."""
    if device is None or device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)
