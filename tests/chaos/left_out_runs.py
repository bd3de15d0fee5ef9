"""Runs that are gone on with from a checkpoint of which one part is not what was saved."""

import copy
import random
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.chaos.killed_runs import CountEnds, Counter, outcome_of, without_times

from proa import Callback, MakerCallback
from proa.record.state_files import read_state
from proa.resume.resuming import Resumption

SECONDS = 60.0


class Watch(Callback):
    """Notes at each step what it sees of the state, and draws from the streams of the process."""

    state_key = "watch"

    def __init__(self):
        self.seen = []

    def on_step_end(self, state, step_idx, batch, metrics):
        told = {name: value for name, value in state.to_dict().items() if name not in ("output_dir", "resumed_from")}
        drawn = [random.random(), float(np.random.random()), float(torch.rand(()))]
        self.seen.append(told | {"metrics": repr(without_times(state.metrics)), "drawn": drawn})

    def on_train_end(self, state, artifacts):
        self.seen.append(
            {"requested": artifacts.total_requested_steps, "rows": [row.name for row in artifacts.checkpoints[-1:]]}
        )

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, saved):
        self.seen = list(saved["seen"])


class CopyAt(Callback):
    """Copies the run's folder when the checkpoints of some steps are written."""

    def __init__(self, story):
        self.story = story

    def on_checkpoint(self, state, row):
        if row.step in self.story.steps:
            place = self.story.folder / f"killed_after_{row.step}" / "run"
            shutil.copytree(self.story.run, place, ignore=shutil.ignore_patterns("*live.json*"))
            self.story.copies[row.step] = place


class Gate:
    """Holds a maker back in its rewards: after so many leases, until it is opened."""

    def __init__(self, leases):
        self.asked = self.sent = 0
        self.limit = leases
        self.opened = threading.Event()
        self.reached = threading.Event()

    def pass_through(self):
        self.asked += 1
        if self.asked > self.limit:
            assert self.opened.wait(SECONDS), "nobody opened the gate"

    def note_sent(self):
        self.sent += 1
        if self.sent == self.limit:
            self.reached.set()


class NotesSent(MakerCallback):
    """Tells a gate of each lease that a maker has sent."""

    def __init__(self, gate):
        self.gate = gate

    def on_send_end(self):
        self.gate.note_sent()


@dataclass
class Story:
    """A run to its end, with copies of its folder from some steps, and what it came to."""

    folder: Path
    recipe: Any
    settings: dict[str, Any]
    steps: tuple[int, ...]
    more: Any = list
    copies: dict[int, Path] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        self.outcome = self._finish(self.run, [CopyAt(self)], {})

    @property
    def run(self):
        return self.folder / "whole" / "run"

    def tree(self, step):
        """What the checkpoint of a step holds, by part."""
        state = next((self.copies[step] / "checkpoints").glob(f"step_{step}")) / "state"
        return {part.name: read_state(part) for part in sorted(state.iterdir())}

    def go_on(self, step, monkeypatch, change=lambda tree: None, **settings):
        """What comes of it from that checkpoint, in which `change` has changed something."""
        place = self.folder / "again" / "run"
        shutil.rmtree(place.parent, ignore_errors=True)
        shutil.copytree(self.copies[step], place)
        whole = Resumption.part

        def part(self, name):
            tree = {name: copy.deepcopy(whole(self, name))}
            change(tree)
            return tree[name]

        with monkeypatch.context() as patched:
            patched.setattr(Resumption, "part", part)
            return self._finish(place, [], settings)

    def _finish(self, place, more, settings):
        counter, ends, watch = Counter(), CountEnds(), Watch()
        error = ""
        try:
            self.recipe(
                **self.settings | settings,
                output_dir=place.parent,
                name=place.name,
                callbacks=[counter, ends, watch, *self.more(), *more],
                resume="auto",
            )
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
        told = {"error": error, "counter": counter.state_dict(), "ends": ends.state_dict(), "watch": watch.state_dict()}
        try:
            return outcome_of(place) | told
        except KeyError:  # it did not come to a summary
            return told


def paths_in(tree, prefix=()):
    """Every part that could be left out by itself: down to what is a whole."""
    for key, value in tree.items():
        path = (*prefix, str(key))
        if isinstance(value, dict) and ".".join(path) not in WHOLES and value:
            yield from paths_in(value, path)
        elif ".".join(path) == "trainer.optimizers":
            for place, optimizer in enumerate(value):
                yield from paths_in(optimizer, (*path, str(place)))
        else:
            yield ".".join(path)


WHOLES = {
    "trainer.loop.metrics", "trainer.after.evaluated_at", "trainer.critic", "trainer.source", "weights.versions",
    "run.callbacks", "run.config", "run.inputs", "run.record", "run.random.numpy", "run.libraries",
    "optimizer.moments", "optimizer.masters", "trained",
    *(f"trainer.optimizers.{place}.moments" for place in range(2)),
}  # fmt: skip


def put(tree, path, value):
    """Replace what is at a path, if this tree has it; `value` may be a function of what was there."""
    *way, last = path.split(".", 2) if path.startswith("run.record.") else path.split(".")
    for name in way:
        if isinstance(tree, dict) and name not in tree:
            return
        tree = tree[int(name)] if isinstance(tree, list) else tree[name]
    if last in tree:
        tree[last] = value(tree[last]) if callable(value) else value


def emptied(value):
    """What a part is when a run begins."""
    if isinstance(value, bool):
        return False
    if isinstance(value, torch.Tensor):
        return value[:0]
    return type(value)() if isinstance(value, int | float | str | dict | list | tuple) else None
