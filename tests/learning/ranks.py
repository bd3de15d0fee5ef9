"""Several trainers in threads of one process: `Replicas` as plainly as it can be, to test what uses it."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from proa.learning.replicas import leaving_message, remote_error


class Table:
    """Where the trainers of one test meet."""

    def __init__(self, size):
        self.size = size
        self.barrier = threading.Barrier(size)
        self.brought = [None] * size
        self.left = None
        self.meetings = 0


class Seat:
    """One trainer's place at it."""

    def __init__(self, table, rank):
        self.table, self.rank, self.size = table, rank, table.size

    def gather(self, value):
        return [json.loads(one) for one in self._meet(json.dumps(value))]

    def from_first(self, value):
        return self._meet(value)[0]

    def collect(self, value):
        return self._meet(value)

    def sum_(self, tensors):
        for place, everyones in enumerate(zip(*self._meet([tensor.clone() for tensor in tensors]), strict=True)):
            tensors[place].copy_(torch.stack(everyones).sum(0))

    def copy_first_(self, tensors):
        with torch.no_grad():
            for tensor, first in zip(tensors, self._meet([tensor.clone() for tensor in tensors])[0], strict=True):
                tensor.copy_(first)

    def leave(self, error):
        self.table.left = leaving_message(self.rank, error)
        self.table.barrier.abort()

    def _meet(self, value):
        table = self.table
        table.brought[self.rank] = value
        try:
            table.barrier.wait(120)
            everyone = list(table.brought)
            table.barrier.wait(120)  # nobody brings something new before all have taken
        except threading.BrokenBarrierError:
            raise remote_error(table.left) from None
        if self.rank == 0:
            table.meetings += 1
        return everyone


def in_threads(size, run):
    """A future of `run(seat)` for each rank, all of them over."""
    table = Table(size)
    with ThreadPoolExecutor(size) as pool:
        return [pool.submit(run, Seat(table, rank)) for rank in range(size)]
