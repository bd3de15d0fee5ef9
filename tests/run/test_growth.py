"""A long run is a row of short ones: nothing that a step, a checkpoint or a resume does grows with the steps before."""

import collections
import gc
import multiprocessing
import os
import statistics
import time

import pytest
import torch
from tests.small import MODEL

from proa import Callback
from proa.recipes import grpo

SETTINGS = {
    "name": "run", "train_batch_size": 4, "model": {"config": MODEL}, "task": {"source": "sort_digits", "count": 64},
    "reward": {"workers": 0}, "sampling": {"group_size": 2, "max_new_tokens": 2}, "record": {"rollouts": 0},
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Sizes(Callback):
    """The sizes of all containers of the process after some steps."""

    def __init__(self, *steps):
        self.at = {}
        self._steps = steps

    def on_step_end(self, state, step_idx, batch, metrics):
        if state.global_step in self._steps:
            gc.collect()
            kinds = (list, dict, set, collections.deque, collections.OrderedDict)
            objects = gc.get_objects()
            objects += gc.get_referents(*objects)  # the collector does not know dicts of plain numbers
            self.at[state.global_step] = {id(one): (len(one), one) for one in objects if type(one) in kinds}


@pytest.mark.prove
def test_neither_containers_nor_checkpoints_grow_with_the_steps(tmp_path):
    """One entry a step, anywhere, is what this finds: the lease book had two of all leases that there ever were, and
    saved one of them. Synchronous, so that no checkpoint has leases in it that happened to have come already."""
    sizes = Sizes(22, 62)  # the first checkpoint fills caches of others: of regular expressions, say
    grpo(
        **SETTINGS, total_steps=62, max_staleness=0, output_dir=tmp_path, callbacks=[sizes],
        checkpoint={"save_every": 20, "keep": None},
    )  # fmt: skip
    early, late = sizes.at[22], sizes.at[62]
    own = {id(early), id(late)}
    grown = {
        (before, len(one), repr(one)[:80])
        for number, (before, one) in early.items()
        if number in late and number not in own and len(one) - before >= 40
    }
    assert not grown

    def size(step):
        folder = tmp_path / "run" / "checkpoints" / f"step_{step}"
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    assert abs(size(60) - size(20)) < 40 * 8  # a number a step would be more; some numbers have more digits by now


class InTurn(Callback):
    """From a step on, takes one step whenever it is told to, and says how long it took."""

    def __init__(self, first, told):
        self.first, self.told = first, told
        self._begun = None

    def on_step_end(self, state, step_idx, batch, metrics):
        if step_idx < self.first:
            return
        self.told.send(None if self._begun is None else time.perf_counter() - self._begun)
        self.told.recv()
        self._begun = time.perf_counter()


def run_in_turn(folder, first, steps, told):
    grpo(
        **SETTINGS, total_steps=first + steps + 1, max_staleness=0, output_dir=folder, callbacks=[InTurn(first, told)],
        optimizer={"learning_rate": 1e-9}, checkpoint={"save_every": 100, "keep": 2},
    )  # fmt: skip


@pytest.mark.prove
def test_steps_after_ten_thousand_take_as_long_as_the_first_ones(tmp_path):
    """Within 3 %. An old run and a young one take their steps in turn, so that whatever else the machine does falls on
    both. The policy hardly changes: completions are as long at the end as at the beginning."""
    processes, ends, children = multiprocessing.get_context("spawn"), [], []
    for name, first in (("old", 10_000), ("young", 200)):
        ours, theirs = processes.Pipe()
        child = processes.Process(target=run_in_turn, args=(tmp_path / name, first, 1000, theirs), daemon=True)
        child.start()
        children.append(child)
        theirs.close()
        ends.append(ours)
    for end in ends:
        end.recv()  # it has come to its first step in turn
    times = ([], [])
    for _ in range(1000):
        for end, seconds in zip(ends, times, strict=True):
            end.send("go on")
            seconds.append(end.recv())
    for end, child in zip(ends, children, strict=True):
        end.send("the last one")
        child.join(60)
        assert child.exitcode == 0
    old, young = map(statistics.median, times)
    print(f"median of a step: {1e3 * old:.2f} ms after 10,000, {1e3 * young:.2f} ms after 200, ratio {old / young:.3f}")
    assert old < 1.03 * young
