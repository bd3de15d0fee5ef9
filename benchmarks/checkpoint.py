"""What saving costs a training step, in the foreground and in the background, beside `torch.save` and safetensors alone.

A trainer of a Llama shape with random weights takes steps on small batches that lie ready; what is saved are weights
and Adam's moments, three times the weights. Everything is the real thing: `fit` of the GRPO trainer, `Checkpoints` as a
run has it, one checkpoint kept. The training is held up from the end of a step to the beginning of the next.

foreground   written, synced, read back from the disk and hashed, the one before pruned; then the next step
background   copied in memory; then the next step, while a thread does the same. Of what the steps meanwhile are slowed
             down, the median round counts: it is a difference, and the smallest one would be noise
alone        the same tensors in one file; nobody looks whether the disk has them, and a crash leaves half a file
memory copy  into new memory, page by page, which takes several times a copy over something old

All are interleaved, and of each the fastest round counts. The disk is that of `--folder`: one in memory syncs for
nothing. A run whose makers lag behind saves the versions of the weights that they use as well; that is not in here.
100 MB of weights take about 2 GB of memory, as much room on the disk, and half a minute a round.

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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from proa.algorithms import build_algorithm
from proa.config import RunConfig
from proa.data.experience import Experience
from proa.data.sampling import Sampling
from proa.lifecycle.hooks import EveryMoment
from proa.lifecycle.manager import CallbackManager
from proa.policy.models import load_model, save_model, weights_of
from proa.policy.optimizer import OptimizerSettings
from proa.recipes.checkpointing import Checkpoints
from proa.recipes.driver_side import DriverSide
from proa.record.checkpoints import CheckpointManager
from proa.record.durable import Disk
from proa.roles.grpo_trainer import DetachedGRPOTrainer
from proa.roles.weights import WeightStore

GROUPS, GROUP, PROMPT, NEW_TOKENS, VOCABULARY, LAYERS = 2, 4, 8, 8, 256, 8
STEPS_BETWEEN = 8
"""So many steps before a background save, to compare with, and as many while it is written."""
FOREGROUND_LIMIT = 6.0
BACKGROUND_LIMIT = 1 / 3
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
    """The real disk, and where the time of the last save went."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def forget(self) -> None:
        self.seconds = dict.fromkeys(("written", "synced", "read", "pruned"), 0.0)

    def call(self, writer: Callable[[Path], None], path: Path) -> None:
        self.forget()  # everything of a save before this is a few names
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
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - begun


@dataclass
class Background:
    held_up: float
    step: float
    """The fastest before it."""
    slowed: float
    """By how much the steps while it was written took longer, all together."""
    steps: int
    """How many these were."""


@dataclass
class Rounds:
    """Seconds, one of each for every round."""

    bytes: int = 0
    alone: dict[str, list[float]] = field(default_factory=dict)
    foreground: list[dict[str, float]] = field(default_factory=list)
    """The parts of each, which add up to what the training was held up."""
    background: list[Background] = field(default_factory=list)

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
            self.model, algorithm=build_algorithm("grpo"), sampling=Sampling(GROUP, NEW_TOKENS),
            optimizer=OptimizerSettings(learning_rate=1e-6), optimizer_steps=10**6, store=WeightStore(),
            train_batch_size=GROUPS * GROUP, dataloader_pin_memory=False,
        )  # fmt: skip
        self.fit(2)  # moments are there from the first step on

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that is saved and is large."""
        moments = self.trainer.optimizer.state_dict()["moments"]
        return {
            **weights_of(self.model),
            **{f"{name}.{kind}": tensor for name, kinds in moments.items() for kind, tensor in kinds.items()},
        }

    def fit(self, steps: int, checkpoints: Checkpoints | None = None) -> Clock:
        """Train as a run does; the batches lie ready."""
        clock = Clock()
        self.trainer.store = WeightStore()  # versions begin anew with each `fit`
        self.trainer.saver = checkpoints.saver() if checkpoints is not None else None
        for number in range(steps):
            self.trainer.buffer_append(batch(number))
        with self.trainer.manager.listening(clock):
            self.trainer.fit(total_steps=steps, update_steps=steps)
        return clock

    def checkpoints(self, folder: Path, *, save_every: int, background: bool) -> Checkpoints:
        config = RunConfig.model_validate({
            "model": {"config": self.model.config.to_dict()}, "task": "sort_digits", "total_steps": 1,
            "train_batch_size": GROUPS * GROUP, "sampling": {"group_size": GROUP, "max_new_tokens": NEW_TOKENS},
            "checkpoint": {"save_every": save_every, "keep": 1, "background": background},
        })  # fmt: skip
        driver = DriverSide(folder, self.trainer.manager)
        return Checkpoints(config, folder, self.model, lambda model, into: save_model(model, None, into), driver)

    def foreground(self) -> dict[str, float]:
        """The second of three saves: the first has nothing to prune, and after the last there is no step."""
        with self._fresh_folder() as folder:
            checkpoints, disk = self.checkpoints(folder, save_every=1, background=False), SavesOnce()
            raise NotImplementedError


