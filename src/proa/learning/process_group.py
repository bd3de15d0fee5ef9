"""Trainers in processes of their own, on one machine or many: `Replicas` over torch.distributed.

Data goes through gloo or NCCL. Attendance at meetings goes through the store at rank 0, a server in its own thread: it
answers while rank 0 computes an eval for an hour, and is gone when rank 0 dies. So a wait here can tell the two apart,
which a collective with a timeout cannot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any, TypedDict, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from ..errors import SettingError
from .replicas import Alone, ReplicaError, Replicas, leaving_message, remote_error

T = TypeVar("T")

LOOK_SECONDS = 0.5
"""How often a trainer that waits for the others checks whether it should give up."""
JOIN_SECONDS = 120.0
"""How long the others may take to start."""
BUCKET_BYTES = 64 * 2**20
"""Gradients are added up in pieces of about this size."""


class EnvInfo(TypedDict):
    """A trainer's place among several, as in torch's launchers."""

    rank: int
    world_size: int
    master_addr: str
    master_port: int


def serve_store(host: str, port: int = 0) -> TCPStore:
    """The store of a new group, at rank 0; the others connect to its `host` and `port` (0: any that is free)."""
    return TCPStore(host, port, is_master=True, wait_for_workers=False)


def join_group(info: EnvInfo, *, patience: float = 600.0) -> Replicas:
    """Join the trainers whose rank 0 is at that address; `Alone` in a group of one."""
    if set(info) != set(EnvInfo.__annotations__) or not 0 <= info["rank"] < info["world_size"]:
        raise SettingError(
            f"env_info is {{rank, world_size, master_addr, master_port}} with ranks from 0 to below world_size, "
            f"not {info!r}"
        )
    if info["world_size"] == 1:
        return Alone()
    address = (info["master_addr"], int(info["master_port"]))
    if info["rank"] == 0:
        return ProcessGroup(serve_store(*address), 0, info["world_size"], patience=patience)
    return ProcessGroup.connect(address, info["rank"], info["world_size"], patience=patience)


class ProcessGroup:
    """One trainer's view of all of them."""

    def __init__(
        self, store: TCPStore, rank: int, size: int, *, backend: str = "gloo", patience: float = 600.0
    ) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._patience = patience
        self._meeting = 0
        self._said_at: list[int] = []
        self._abandoned = ""
        dist.init_process_group(
            backend, store=PrefixStore("data", store), rank=rank, world_size=size,
            timeout=timedelta(seconds=max(patience, JOIN_SECONDS)),
        )  # fmt: skip

    @classmethod
    def connect(
        cls, address: tuple[str, int], rank: int, size: int, *, backend: str = "gloo", patience: float = 600.0
    ) -> ProcessGroup:
        """Join the group whose store is at that address."""
        return cls(TCPStore(*address, is_master=False), rank, size, backend=backend, patience=patience)

    # -- meetings ------------------------------------------------------------------------------------

    def gather(self, value: T) -> list[T]:
        """Gather through the store, as JSON: for a few numbers a collective takes several times as long."""
        said = f"said/{self._meeting + 1}/"
        with _translated_errors():
            self._store.set(f"{said}{self.rank}", json.dumps(value))
        self._meet()
        with _translated_errors():
            gathered: list[Any] = self._store.multi_get([f"{said}{rank}" for rank in range(self.size)])
            # Values of a meeting can be deleted once everyone has come to a later one.
            self._said_at.append(self._meeting)
            while self._said_at[0] < self._meeting:
                self._store.delete_key(f"said/{self._said_at.pop(0)}/{self.rank}")
        return [json.loads(one) for one in gathered]

    def from_first(self, value: T) -> T:
        self._meet()
        box = [value if self.rank == 0 else None]
        with _translated_errors():
            dist.broadcast_object_list(box, src=0)
        return cast("T", box[0])

    def collect(self, value: T) -> list[T]:
        self._meet()
        collected: list[Any] = [None] * self.size
        with _translated_errors():
            dist.all_gather_object(collected, value)
        return collected

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        self._meet()
        with _translated_errors():
            for bucket in _buckets(tensors):
                flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
                dist.all_reduce(flat)
                _put_back(flat, bucket)

    def copy_first_(self, tensors: Sequence[torch.Tensor]) -> None:
        self._meet()
        with _translated_errors(), torch.no_grad():
            for bucket in _buckets(tensors):
                flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
                dist.broadcast(flat, src=0)
                _put_back(flat, bucket)

    def leave(self, error: BaseException) -> None:
        try:
            missed = self._meeting + 1
            self._store.set("left", json.dumps(leaving_message(self.rank, error) | {"missed": missed}))
            self._store.set(f"meeting/{missed}", "")  # end the waits of those who are there
        except dist.DistError:
            pass  # rank 0 is gone, and the store with it

    def abandon(self, reason: str) -> None:
        """End every wait, now and later, as the others will not come; from any thread."""
        self._abandoned = reason

    def _meet(self) -> None:
        """Come to the next meeting, and wait for the others."""
        self._meeting += 1
        key = f"meeting/{self._meeting}"
        with _translated_errors():
            if self._store.add(f"came/{self._meeting}", 1) == self.size:
                self._store.set(key, "")
                self._store.delete_key(f"came/{self._meeting - 2}")
                self._store.delete_key(f"meeting/{self._meeting - 2}")
            since = monotonic()
            while True:
                try:
                    self._store.wait([key], timedelta(seconds=LOOK_SECONDS))
                    break
                except dist.DistStoreError:
                    pass  # not yet
                self._check_others()
                # Rank 0 may be evaluating for any length of time; the others only compute their share of a batch.
                if self.rank == 0 and monotonic() - since > self._patience:
                    raise ReplicaError(f"the other trainers have not come to a step for {self._patience:g} s")
            self._check_others()

    def _check_others(self) -> None:
        """Raise if another trainer has left, or is known not to come."""
        if self._abandoned:
            raise ReplicaError(self._abandoned)
        if self._store.check(["left"]):
            said = json.loads(self._store.get("left"))
            # It came to all meetings before that one: a trainer still in one of those must get its result, or it would
            # be a step behind.
            if self._meeting >= said["missed"]:
                raise remote_error(said)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate a broken connection into the loss of another trainer."""
    try:
        yield
    except ReplicaError:
        raise
    except (dist.DistError, RuntimeError) as error:
        raise ReplicaError(f"another trainer is gone: {str(error).splitlines()[0]}") from error


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Neighbours of one dtype and device, up to about `BUCKET_BYTES` together."""
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        other = bucket and (tensor.dtype, tensor.device) != (bucket[0].dtype, bucket[0].device)
        if bucket and (other or size + tensor.nbytes > BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket


def _put_back(flat: torch.Tensor, bucket: Sequence[torch.Tensor]) -> None:
    for tensor, part in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True):
        tensor.copy_(part.view_as(tensor))
