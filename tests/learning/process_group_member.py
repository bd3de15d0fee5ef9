"""Trainers of a group in processes of their own, for the tests beside.

This process imports torch once. For each line `SCENARIO SIZE` it forks that many members, lets them go through the
scenario, and answers with what each of them said, by rank.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback

import torch

from proa.data.state import StopTraining
from proa.learning import process_group
from proa.learning.process_group import ProcessGroup, serve_store
from proa.learning.replicas import ReplicaError

process_group.LOOK_SECONDS = 0.05
SHORT = 0.3
"""Seconds; the patience of whoever is to lose it."""


# -- scenarios -------------------------------------------------------------------------------------------


def meets(group):
    process_group.BUCKET_BYTES = 64  # of which the last tensor needs several
    assert group.gather({"rank": group.rank, "nan": [1.5, None]}) == [
        {"rank": rank, "nan": [1.5, None]} for rank in range(group.size)
    ]
    assert group.from_first({"a": torch.ones(2)} if group.rank == 0 else None)["a"].tolist() == [1.0, 1.0]
    own = [torch.full((3, 2), float(group.rank + 1)), torch.tensor(1.0, dtype=torch.float64), torch.ones(100)]
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
    group._patience = SHORT
    if group.rank == 0:
        all_others_have_come(group)
        time.sleep(4 * SHORT)
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
    group._patience = SHORT
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.gather(1)
    except ReplicaError as error:
        said(error)


def the_first_dies(group):
    if group.rank == 0:
        all_others_have_come(group)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.from_first(1)
    except ReplicaError as error:
        said(str(error).partition(":")[0])


def is_told_to_give_up(group):
    """The second comes to the meeting only when the first has given up waiting for it."""
    if group.rank == 1:
        group._store.wait(["gave up"])
        return
    check, waits = group._check_others, threading.Event()

    def check_others():
        waits.set()
        check()

    group._check_others = check_others
    threading.Thread(target=lambda: waits.wait() and group.abandon("trainer_1 died")).start()
    try:
        group.gather(1)
    except ReplicaError as error:
        said(error)
    group._store.set("gave up", "")


def all_others_have_come(group):
    """To the meeting that comes next."""
    while group._store.add(f"came/{group._meeting + 1}", 0) < group.size - 1:
        time.sleep(0.01)


# -- members ---------------------------------------------------------------------------------------------


def said(*words):
    print(*words, flush=True)


def take_part(scenario, rank, size, port):
    """All come up and meet before anything happens: one that dies while others join keeps them waiting for that."""
    if rank == 0:
        store = serve_store("127.0.0.1")
        said(store.port)
        group = ProcessGroup(store, 0, size, patience=300.0)
    else:
        group = ProcessGroup.connect(("127.0.0.1", port), rank, size, patience=300.0)
    group.gather("all here")
    globals()[scenario](group)
    said("done")
    sys.stdin.read()  # the first has the store, and stays for the others


class Member:
    """One process of a group, seen from here."""

    def __init__(self, scenario, rank, size, port, others):
        (from_here, self.to_member), (self._from_member, to_here) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for mine, theirs in ((0, from_here), (1, to_here)):
                os.dup2(theirs, mine)
            for other in (self.to_member, *(other.to_member for other in others)):
                os.close(other)
            try:
                take_part(scenario, rank, size, port)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        os.close(from_here)
        os.close(to_here)
        self.out = os.fdopen(self._from_member)

    def finish(self):
        """Let it go, and say what it has said."""
        os.close(self.to_member)
        with self.out:
            lines = self.out.read().splitlines()
        os.waitpid(self.pid, 0)
        return lines


def go_through(scenario, size):
    members = [Member(scenario, 0, size, 0, [])]
    port = int(members[0].out.readline())
    for rank in range(1, size):
        members.append(Member(scenario, rank, size, port, members))
    return [member.finish() for member in reversed(members)][::-1]


if __name__ == "__main__":
    for line in iter(sys.stdin.readline, ""):
        scenario, size = line.split()
        print(json.dumps(go_through(scenario, int(size))), flush=True)
