"""One trainer of a group in a process of its own, for the tests beside: its arguments are WHAT RANK SIZE PORT."""

import os
import signal
import sys
import threading
import time

import torch

from proa.data.state import StopTraining
from proa.roles.replicas import ReplicaError
from proa.runtime.process_group import ProcessGroup, serve_store


def said(*words):
    print(*words, flush=True)


def meets(group):
    assert group.gather({"rank": group.rank, "nan": [1.5, None]}) == [
        {"rank": rank, "nan": [1.5, None]} for rank in range(group.size)
    ]
    assert group.from_first({"a": torch.ones(2)} if group.rank == 0 else None)["a"].tolist() == [1.0, 1.0]
    own = [torch.full((3, 2), float(group.rank + 1)), torch.tensor(1.0, dtype=torch.float64), torch.ones(40_000_000)]
    group.sum_(own)
    total = sum(range(1, group.size + 1))
    assert own[0].tolist() == [[total] * 2] * 3
    assert own[1].item() == group.size
    assert own[2].eq(group.size).all()
    weights = [torch.full((4,), float(group.rank)), torch.nn.Parameter(torch.full((2,), float(group.rank)))]
    group.copy_first_(weights)
    assert not weights[0].any()
    assert not weights[1].any()
    for step in range(50):  # what was said is forgotten
        group.gather(step)
    assert group._store.num_keys() < 60


def waits_for_a_first_that_is_busy(group):
    if group.rank == 0:
        time.sleep(3)  # longer than the patience of anyone
    said("heard", group.from_first("news"))


def leaves(group):
    try:
        if group.rank == 1:
            group.leave(MemoryError("too much"))
            return
        group.gather(1)
    except ReplicaError as error:
        said(error)


def stops(group):
    try:
        if group.rank == 0:
            group.leave(StopTraining("enough"))
            return
        group.gather(1)
    except StopTraining as stop:
        said("stopped:", stop.reason)


def dies(group):
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        group.gather(1)
    except ReplicaError as error:
        said("within" if time.monotonic() - begun < 5 else "late", error)


def the_first_dies(group):
    if group.rank == 0:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.from_first(1)
    except ReplicaError as error:
        said(str(error).partition(":")[0])


def is_told_to_give_up(group):
    if group.rank == 1:
        time.sleep(2)
        return
    threading.Timer(0.2, group.abandon, ["trainer_1 died"]).start()
    begun = time.monotonic()
    try:
        group.gather(1)
    except ReplicaError as error:
        said("within" if time.monotonic() - begun < 1.5 else "late", error)


if __name__ == "__main__":
    what, rank, size, port = sys.argv[1], *map(int, sys.argv[2:])
    patience = 2.0 if what in ("dies", "waits_for_a_first_that_is_busy") else 60.0
    if rank == 0:
        store = serve_store("127.0.0.1")
        said(store.port)
        group = ProcessGroup(store, 0, size, patience=patience)
    else:
        group = ProcessGroup.connect(("127.0.0.1", port), rank, size, patience=patience)
    group.gather("all here")  # one that dies while others still join keeps them waiting for the join
    globals()[what](group)
    said("done")
    over = group._store.add("over", 1) if rank else 0
    until = time.monotonic() + 5
    while rank == 0 and over < size - 1 and time.monotonic() < until:  # rank 0 has the store
        time.sleep(0.05)
        over = group._store.add("over", 0)
    os._exit(0)
