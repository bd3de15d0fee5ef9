"""What the recorded runs are made of, and what is kept of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.ancestors.listeners import Heard
from tests.experiments.small_experiment import RUN

from proa import Callback, DetachedTrainer, Experience, ExperimentResult, TrainState

BENCHMARK = {"name": "held_out", "count": 4, "breakdown": ["finish_reason"], "tags": ["short"]}
GENERATE = {**BENCHMARK, "kind": "generate", "baseline": False}
LOSS = {"name": "loss", "kind": "loss", "count": 4, "run_every": 3, "baseline": False}
SFT = {**{key: value for key, value in RUN.items() if key != "algorithm"}, "total_steps": 3, "train_epochs": 2}


@dataclass
class Recorded:
    """What was heard in a run: by callbacks, by the functions for the ten events, and by the makers' callback."""

    folder: Path
    state: TrainState | None = None
    hooks: Heard = field(default_factory=Heard)
    events: Heard = field(default_factory=Heard)
    makers: Heard = field(default_factory=Heard)


@dataclass
class RecordedExperiment:
    """What one callback heard in an experiment."""

    result: ExperimentResult
    hooks: Heard


class OutOfLuck(Callback):
    """Raises in the second step."""

    def on_step_end(self, state: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        if step_idx == 1:
            raise RuntimeError("out of luck")


class OwnTrainer(DetachedTrainer):
    """A user's trainer: it keeps what it trained on and when it pushed."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.trained: list[list[int]] = []
        self.pushes: list[tuple[int, bool, dict[str, Any]]] = []

    def training_step(self, experience: Experience) -> dict[str, Any]:
        self.trained.append(experience.sequences[:, 0].tolist())
        return {"loss": float(len(self.trained))}

    def _update_remote_makers(self, fully_update: bool = False, **kwargs: Any) -> None:
        self.pushes.append((len(self.trained), fully_update, kwargs))


@dataclass
class Example:
    """A trainer of one's own after its `fit`."""

    trainer: OwnTrainer
    batches_before: int
    hooks: Heard
    events: Heard
    returned: object = ...


def numbered(count: int) -> Experience:
    """Samples whose first token is their number."""
    return Experience(torch.arange(count)[:, None].expand(count, 4).clone(), torch.zeros(count, 2))
