"""What saving costs the training, in the foreground and in the background, beside `torch.save` and safetensors.

A trainer of a Llama shape with random weights takes steps on small batches that lie ready; what is saved are weights
and Adam's moments, three times the weights. Everything is the real thing: `fit` of the GRPO trainer, `Checkpoints` as a
run has it, one checkpoint kept. The training is held up from the end of a step to the beginning of the next.

foreground   written, synced, read back from the disk and hashed, the one before pruned; then the next step
background   copied in memory; then the next step, while a thread does all that. By how much the steps meanwhile take
             longer is the median of all saves: it is a difference, and the smallest would be noise
alone        the same tensors in one file; whether the disk has them nobody looks, and a crash leaves half of it
memory copy  of all bytes into a new block, whose pages nobody has touched, as the first copy of a state finds them

All are interleaved, and of each the fastest round counts. It takes two cores with nothing else to do: where the thread
has none for itself, the steps are slowed down by all that it computes, most of it SHA-256. The disk is that of
`--folder`; one in memory syncs for nothing. A run whose makers lag behind also saves the versions of the weights that
they use, which is not in here. 100 MB of weights take about 2 GB of memory and 1 GB of the disk.

    python benchmarks/checkpoint.py [--json] [--rounds N] [--megabytes N] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from proa.algorithms import build_algorithm
from proa.config import RunConfig
from proa.data.experience import Experience
from proa.data.results import EvalResult
from proa.data.sampling import Sampling
from proa.learning.optimizer import OptimizerSettings
from proa.lifecycle.hooks import EveryMoment
from proa.policy.models import load_model, model_weights
from proa.policy.policy import PlainPolicy
from proa.record.durable import Disk
from proa.record.run_record import StepRecord
from proa.resume.checkpoints import Checkpoints
from proa.resume.inputs import Inputs
from proa.roles.policy_trainer import DetachedGRPOTrainer
from proa.roles.weights import WeightStore

GROUPS, GROUP, PROMPT, NEW_TOKENS, VOCABULARY, LAYERS = 2, 4, 8, 8, 256, 8
STEPS_BETWEEN = 5
"""So many steps before the first background save, to compare with, and between two: it is written before they end."""
FOREGROUND_LIMIT = 6.0
BACKGROUND_LIMIT = 1 / 2
"""A step waits for a copy in memory; the rest is the disk's and the hash's. On a disk that takes no time the copy is
still no more than half: hashing a byte takes at least as long as copying it."""
COPIES_LIMIT = 2.0


def model_config(megabytes: float) -> dict[str, Any]:
    """A Llama shape with about so much of float32 weights: each layer has about 12 times its width squared."""
    width = max(16, round((megabytes * 1e6 / 4 / 12 / LAYERS) ** 0.5 / 16) * 16)
    return {
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": width, "intermediate_size": 8 * width // 3,
        "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 8,
        "max_position_embeddings": PROMPT + NEW_TOKENS, "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None,
    }  # fmt: skip


def batch(seed: int) -> Experience:
    """What a maker might have sent: random tokens, and rewards that differ within each group."""
    samples, generator = GROUPS * GROUP, torch.Generator().manual_seed(seed)
    return Experience(
        torch.randint(2, VOCABULARY, (samples, PROMPT + NEW_TOKENS), generator=generator),
        torch.full((samples, NEW_TOKENS), -5.0),
        reward=torch.rand(samples, generator=generator),
        group_ids=tuple(f"{row // GROUP}" for row in range(samples)),
    )


class Clock(EveryMoment):
    """When steps began and ended, and how many had ended when a checkpoint was told of."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.ended: list[float] = []
        self.told: list[int] = []

    def on_moment(self, event: str, payload: Mapping[str, Any]) -> None:
        if event == "step_start":
            self.begun.append(time.perf_counter())
        elif event == "step_end":
            self.ended.append(time.perf_counter())
        elif event == "checkpoint_saved":
            self.told.append(len(self.ended))

    def step(self, index: int) -> float:
        return self.ended[index] - self.begun[index]

    def held_up_after(self, index: int) -> float:
        return self.begun[index + 1] - self.ended[index]


class TimedDisk(Disk):
    """The real disk, and where the time of each save went."""

    def __init__(self) -> None:
        self.saves: list[dict[str, float]] = []

    def call(self, writer: Callable[[Path], None], path: Path) -> None:
        self.saves.append(dict.fromkeys(("written", "synced", "read", "pruned"), 0.0))
        with self._adding_to("written"):
            super().call(writer, path)

    def sync(self, descriptor: int) -> None:
        with self._adding_to("synced"):
            super().sync(descriptor)

    def read(self, descriptor: int) -> bytes:
        with self._adding_to("read"):
            return super().read(descriptor)

    def remove_tree(self, path: Path) -> None:
        with self._adding_to("pruned"):
            super().remove_tree(path)

    @contextmanager
    def _adding_to(self, part: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if self.saves:  # before the first there are a few names
            self.saves[-1][part] += time.perf_counter() - begun


class NoRecord:
    """A driver that has nothing of its own to save; in a run it is a few lines."""

    def before_saving(self) -> dict[str, Any]:
        return {}

    def write_step(self, record: StepRecord) -> None: ...
    def report_eval(self, result: EvalResult, predictions: list[dict[str, Any]]) -> None: ...


class NothingMore:
    """The content of a checkpoint beside its model and its loop."""

    def parts(self) -> dict[str, Any]:
        return {}

    def run_part(self) -> dict[str, Any]:
        return {}


@dataclass
class Background:
    """What one save in the background cost."""

    held_up: float
    step: float
    """The fastest before it."""
    slowed: float
    """By how much the steps while it was written took longer, all together."""
    steps: int
    """How many these were."""


def background_saves(clock: Clock, every: int) -> list[Background]:
    """The first two. The steps until one is told of are those while it was written; the very first warms up."""
    before = [clock.step(index) for index in range(1, every)]
    saves = []
    for first, told in zip((every, 2 * every), clock.told[:2], strict=True):
        meanwhile = [clock.step(index) for index in range(first, told)]
        slowed = sum(meanwhile) - len(meanwhile) * statistics.mean(before)
        saves.append(Background(clock.held_up_after(first - 1), min(before), slowed, len(meanwhile)))
    return saves


@dataclass
class Rounds:
    """Seconds, one of each for every round."""

    bytes: int = 0
    alone: dict[str, list[float]] = field(default_factory=dict)
    foreground: list[dict[str, float]] = field(default_factory=list)
    """The parts of each, which add up to what the training was held up."""
    background: list[Background] = field(default_factory=list)
    """Two in every round."""

    @property
    def step(self) -> float:
        return min(saved.step for saved in self.background)

    @property
    def parts(self) -> dict[str, float]:
        """Of the fastest foreground save."""
        return min(self.foreground, key=lambda parts: sum(parts.values()))

    @property
    def held_up(self) -> float:
        return min(saved.held_up for saved in self.background)

    @property
    def slowed(self) -> float:
        return statistics.median(saved.slowed for saved in self.background)

    def rows(self) -> dict[str, float]:
        """The table."""
        parts = self.parts
        return {
            "step": self.step,
            **{name: min(seconds) for name, seconds in self.alone.items()},
            "foreground": sum(parts.values()),
            **{f"  {name}": seconds for name, seconds in parts.items()},
            "background": self.held_up,
            "  steps slowed down, in all": self.slowed,
        }

    def ratios(self) -> dict[str, float]:
        """What is limited."""
        foreground = sum(self.parts.values())
        return {
            "foreground / safetensors with fsync": foreground / min(self.alone["safetensors, fsync"]),
            "background / foreground": self.held_up / foreground,
            "background / memory copy": self.held_up / min(self.alone["memory copy"]),
        }


class Bench:
    """A trainer, and a folder for what it saves."""

    def __init__(self, megabytes: float, folder: Path, steps_between: int = STEPS_BETWEEN) -> None:
        self.folder = folder
        self.steps_between = steps_between
        self.model = load_model(model_config(megabytes))
        self.trainer = DetachedGRPOTrainer(
            [], self.model, algorithm=build_algorithm("grpo"), sampling=Sampling(GROUP, NEW_TOKENS),
            optimizer=OptimizerSettings(learning_rate=1e-6), optimizer_steps=10**6, store=WeightStore(),
            train_batch_size=GROUPS * GROUP, dataloader_pin_memory=False,
        )  # fmt: skip
        self.fit(2)  # moments are there from the first step on
        self.bytes = sum(tensor.nbytes for tensor in self.tensors().values())
        self.block = torch.ones(self.bytes, dtype=torch.uint8)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that is saved and is large."""
        moments = self.trainer.learner.optimizer.state_dict()["moments"]
        return {
            **model_weights(self.model),
            **{f"{name}.{kind}": tensor for name, kinds in moments.items() for kind, tensor in kinds.items()},
        }

    def fit(self, steps: int, checkpoints: Checkpoints | None = None) -> Clock:
        """Train as a run does; the batches lie ready."""
        clock = Clock()
        self.trainer.store = WeightStore()  # versions begin anew with each `fit`
        self.trainer.saver = checkpoints
        for number in range(steps):
            self.trainer.buffer_append(batch(number))
        self.trainer.manager.add(clock)
        self.trainer.fit(total_steps=steps, update_steps=steps)
        self.trainer.manager.remove(clock)
        return clock

    def checkpoints(self, folder: Path, *, save_every: int, background: bool, disk: Disk | None = None) -> Checkpoints:
        config = RunConfig.model_validate({
            "model": {"config": self.model.config.to_dict()}, "task": "sort_digits", "total_steps": 1,
            "train_batch_size": GROUPS * GROUP, "sampling": {"group_size": GROUP, "max_new_tokens": NEW_TOKENS},
            "checkpoint": {"save_every": save_every, "keep": 1, "background": background},
        })  # fmt: skip
        return Checkpoints(config, folder, PlainPolicy(self.model), NothingMore(), NoRecord(), Inputs(), disk=disk)

    def foreground(self) -> dict[str, float]:
        """The second of three saves: the first has nothing to prune, and after the last there is no step."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            disk = TimedDisk()
            checkpoints = self.checkpoints(Path(folder), save_every=1, background=False, disk=disk)
            held_up = self.fit(3, checkpoints).held_up_after(1)
            parts = disk.saves[1]
            return {**parts, "hashed, and the rest": held_up - sum(parts.values())}

    def background(self) -> list[Background]:
        """The first two of three saves: after the last there is no step."""
        every = self.steps_between
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            clock = self.fit(3 * every, self.checkpoints(Path(folder), save_every=every, background=True))
        return background_saves(clock, every)

    def alone(self) -> dict[str, float]:
        """The same tensors with nothing around them."""
        tensors = self.tensors()
        tree = {"model": model_weights(self.model), "trainer": self.trainer.state_dict()}
        plain, synced = self._file(lambda path: save_file(tensors, path))
        pickled, pickled_and_synced = self._file(lambda path: torch.save(tree, path))  # noqa: TID251 - is never loaded
        return {
            "memory copy": self._copy(),
            "safetensors": plain,
            "safetensors, fsync": synced,
            "torch.save": pickled,
            "torch.save, fsync": pickled_and_synced,
        }

    def _copy(self) -> float:
        begun = time.perf_counter()
        place = torch.empty(self.bytes, dtype=torch.uint8)
        place.copy_(self.block)
        return time.perf_counter() - begun

    def _file(self, write: Callable[[Path], None]) -> tuple[float, float]:
        """Seconds until a new file was written, and until it was synced."""
        path = self.folder / "alone"
        begun = time.perf_counter()
        write(path)
        written = time.perf_counter()
        with path.open("rb") as file:
            os.fsync(file.fileno())
        synced = time.perf_counter()
        path.unlink()
        return written - begun, synced - begun

    def run(self, rounds: int) -> Rounds:
        found = Rounds(self.bytes)
        for _ in range(rounds):  # interleaved, so that a busy second of the machine hits everyone
            for name, seconds in self.alone().items():
                found.alone.setdefault(name, []).append(seconds)
            found.foreground.append(self.foreground())
            found.background += self.background()
        return found


def verdicts(found: Rounds) -> dict[str, bool]:
    foreground, background, copies = found.ratios().values()
    return {
        f"the foreground takes at most {FOREGROUND_LIMIT:g} times safetensors with fsync": foreground
        <= FOREGROUND_LIMIT,
        f"the background holds a step up for less than {BACKGROUND_LIMIT:.2f} of that": background < BACKGROUND_LIMIT,
        f"and for less than {COPIES_LIMIT:g} memory copies": copies < COPIES_LIMIT,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="What saving costs a training step.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over everything; the fastest count")
    parser.add_argument("--megabytes", type=float, default=100, help="of float32 weights, with twice that of moments")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs"), help="where to write; it is empty again at the end"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="checkpoint-benchmark-", dir=options.folder) as folder:
        found = Bench(options.megabytes, Path(folder)).run(options.rounds)
    checks = verdicts(found)
    if options.json:
        print(json.dumps(_plain(found, checks), indent=2))
    else:
        _print(found, checks)
    return 0 if all(checks.values()) else 1


def _plain(found: Rounds, checks: dict[str, bool]) -> dict[str, Any]:
    return {
        "bytes": found.bytes,
        "seconds": {name.strip(): round(seconds, 4) for name, seconds in found.rows().items()},
        "steps_while_written": [saved.steps for saved in found.background],
        "ratios": {name: round(ratio, 3) for name, ratio in found.ratios().items()},
        "checks": checks,
    }


def _print(found: Rounds, checks: dict[str, bool]) -> None:
    beside = min(found.alone["safetensors, fsync"])
    print(f"{f'{found.bytes / 1e6:,.0f} MB':28} {'ms':>8} {'/ safetensors, fsync':>21} {'/ step':>8}")
    for name, seconds in found.rows().items():
        print(f"{name:28} {seconds * 1e3:8,.0f} {seconds / beside:21.2f} {seconds / found.step:8.2f}")
    print(f"steps while one was written: {', '.join(str(saved.steps) for saved in found.background)}")
    print("; ".join(f"{name}: {ratio:.2f}" for name, ratio in found.ratios().items()))
    for check, holds in checks.items():
        print(f"{'holds' if holds else 'FAILS'}: {check}")


if __name__ == "__main__":
    sys.exit(main())
