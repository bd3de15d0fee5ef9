"""A long run is a row of short ones: nothing that a step, a checkpoint or a resume does grows with the steps before."""

import collections
import gc
import os
import statistics
import time

import pytest
import torch

from proa import Callback
from proa.recipes import grpo

MODEL = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24,
}  # fmt: skip
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


class StepTimes(Callback):
    """Processor time of each step, of all threads."""

    def __init__(self):
        self.seconds = []
        self._last = time.process_time()

    def on_step_end(self, state, step_idx, batch, metrics):
        now = time.process_time()
        self.seconds.append(now - self._last)
        self._last = now


@pytest.mark.prove
def test_the_last_thousand_of_ten_thousand_steps_take_no_longer_than_the_first(tmp_path):
    """Within 3 %. The policy hardly changes, so that completions are as long at the end as at the beginning.

    Processor time, and of each thousand the fastest tenth: a neighbour on the machine makes steps slower, never faster.
    """
    times = StepTimes()
    grpo(
        **SETTINGS, total_steps=10_200, output_dir=tmp_path, callbacks=[times], optimizer={"learning_rate": 1e-9},
        checkpoint={"save_every": 100, "keep": 2},
    )  # fmt: skip
    thousands = [times.seconds[begin : begin + 1000] for begin in range(200, 10_200, 1000)]
    fast = [statistics.quantiles(thousand, n=10)[0] for thousand in thousands]
    assert fast[-1] / fast[0] < 1.03, [f"{1e3 * seconds:.2f} ms" for seconds in fast]
    print([f"{1e3 * statistics.median(thousand):.2f} ms" for thousand in thousands])
