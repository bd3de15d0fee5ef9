"""Weights by version: published once, fetched by whoever needs that version, checked before they are used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import xxhash

from ..actors.waiting import WaitingRoom
from ..data.versions import BASE_VERSION
from ..errors import ProaError
from .device_hash import device_digest
from .parcel import Parcel, tensor_bytes, unwrap, wrap
from .probe import Probe

PIECE_BYTES = 8 * 2**20
"""What one thread hashes at a time: long enough to be worth starting one."""
PUBLISHING_THREADS = min(4, os.cpu_count() or 1)
"""All makers wait for the digest of a new version. Makers check it at the same time, with one thread each."""


class WeightsError(ProaError):
    """Weights arrived that are not what was published."""


@dataclass(frozen=True, slots=True)
class Weights:
    """All parameters of one version, with their digest from when they were published."""

    version: int
    tensors: Any
    """By name; or, where they are kept elsewhere, a reference to them."""
    digest: str
    probe: Probe | None = None
    """The trainer's log-probabilities of a few tokens with these weights."""

    @classmethod
    def of(cls, version: int, tensors: Mapping[str, torch.Tensor], probe: Probe | None = None) -> Weights:
        """These tensors as that version, for a maker's `update_experience_maker`."""
        copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        return cls(version, copies, transport_digest(copies), probe)

    def __reduce__(self) -> tuple[Any, ...]:
        if not isinstance(self.tensors, Mapping):
            return Weights, (self.version, self.tensors, self.digest, self.probe)
        return _unpickled, (self.version, wrap(self.tensors), self.digest, self.probe)

    def check(self) -> None:
        """Raise unless names, shapes, dtypes and bytes are those that were published."""
        if transport_digest(self.tensors) != self.digest:
            raise WeightsError(f"the weights of version {self.version} were damaged on their way")


def _unpickled(version: int, parcel: Parcel, digest: str, probe: Probe | None) -> Weights:
    return Weights(version, unwrap(parcel), digest, probe)


class Shelf(Protocol):
    """Where the tensors of published versions are kept."""

    def put(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Any, str]:
        """Copy them to where they will not change: a reference to them, and their digest."""

    def get(self, reference: Any) -> Mapping[str, torch.Tensor]:
        """The tensors, on the CPU. They must not be changed."""

    def drop(self, reference: Any) -> None:
        """Release the tensors."""


class InProcess:
    """Keeps copies on the tensors' own device, from where makers in this process copy them without the host."""

    def put(self, tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], str]:
        copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
        return copies, transport_digest(copies, threads=PUBLISHING_THREADS)  # on a GPU it waits for the copies

    def get(self, reference: dict[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {name: tensor.cpu() for name, tensor in reference.items()}

    def drop(self, reference: dict[str, torch.Tensor]) -> None:
        """Nothing to do: they are freed with their last reference."""


class WeightStore:
    """Keeps the versions that a lease may still name, and releases older ones."""

    def __init__(self, *, wait_timeout: float = 600.0, shelf: Shelf | None = None) -> None:
        self.room = WaitingRoom()
        self._versions: dict[int, Weights] = {}
        self._wait_timeout = wait_timeout
        self._shelf = shelf or InProcess()

    def publish(self, version: int, tensors: Mapping[str, torch.Tensor], probe: Probe | None = None) -> Weights:
        """Copy the tensors and offer them under that version; the trainer may change its own afterwards."""
        reference, digest = self._shelf.put({name: tensor.detach() for name, tensor in tensors.items()})
        weights = Weights(version, reference, digest, probe)
        with self.room as room:
            if version in self._versions:
                raise WeightsError(f"version {version} was published already, and a version never changes")
            self._versions[version] = weights
            room.announce()
        return weights

    def fetch(self, version: int, *, owner: str, seconds: float | None = None) -> Weights:
        """The weights of exactly that version; waits until they are published."""
        with self.room as room:
            room.wait_until(
                lambda: version in self._versions,
                owner=owner,
                reason=f"weights of version {version}",
                timeout=self._wait_timeout if seconds is None else seconds,
            )
            return self._versions[version]

    def recall(self, versions: set[int]) -> dict[int, Mapping[str, torch.Tensor]]:
        """The tensors of those versions that are kept, on the CPU. They must not be changed."""
        with self.room:
            kept = {version: self._versions[version] for version in sorted(versions & self._versions.keys())}
        return {version: self._shelf.get(weights.tensors) for version, weights in kept.items()}

    def retire(self, *, but: set[int] | None) -> None:
        """Release all versions but those in use, or none if it is unknown which are (None). The newest stays, and so
        does the base of adapters, which a maker that starts late still needs."""
        if but is None:
            return
        with self.room:
            kept = {BASE_VERSION, max(self._versions, default=BASE_VERSION), *but}
            retired = [self._versions.pop(version) for version in self._versions.keys() - kept]
        for weights in retired:
            self._shelf.drop(weights.tensors)

    @property
    def versions(self) -> list[int]:
        with self.room:
            return sorted(self._versions)


def transport_digest(tensors: Mapping[str, torch.Tensor], *, threads: int = 1) -> str:
    """A hash of names, shapes, dtypes and bytes in the order of names: fast, against accidents, not attacks.

    On the CPU it is xxh3, over pieces of the bytes, by as many threads as are given; on a GPU it is computed there.
    """
    if any(tensor.is_cuda for tensor in tensors.values()):
        return device_digest(tensors)
    digest = xxhash.xxh3_128()
    pieces: list[memoryview] = []
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype};".encode())
        memory = tensor_bytes(tensor).data
        pieces += [memory[first : first + PIECE_BYTES] for first in range(0, len(memory), PIECE_BYTES)]
    if threads == 1 or len(pieces) < 2:
        hashes = [xxhash.xxh3_128_digest(piece) for piece in pieces]
    else:
        with ThreadPoolExecutor(threads, "proa hashing") as pool:  # xxhash releases the interpreter's lock
            hashes = list(pool.map(xxhash.xxh3_128_digest, pieces))
    for piece_hash in hashes:
        digest.update(piece_hash)
    return digest.hexdigest()
