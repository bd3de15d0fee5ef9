"""One run on Ray that several tests look at, with everybody listening, in the driver and in the actors."""

from __future__ import annotations

import io
import os
import threading
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.ancestors.service_logger import ServiceLogger
from tests.ancestors.test_documented_examples import TRAINER_CALLBACK
from tests.integration.small_run import digest, header

from proa import MakerCallback, TrainerCallback
from proa.callbacks import ExperienceMakerPerformanceEvaluator, TrainerPerformanceEvaluator
from proa.lifecycle.hooks import EveryMoment

exec(TRAINER_CALLBACK)  # LoggingCallback, from the documentation
DRIVER = os.getpid()


class Watching(EveryMoment):
    """Hears everything, in the driver."""

    def __init__(self) -> None:
        self.heard = []
        self.of_trainer = []
        self.of_makers = {"versions": [], "lengths": [], "ends": []}

    def on_moment(self, event, payload):
        assert os.getpid() == DRIVER
        match event:
            case "maker.weights_loaded":
                self.of_makers["versions"].append(payload["version"])
            case "maker.make_experience_end":
                self.of_makers["lengths"].append(len(payload["experience"]))
            case "step_end":
                assert payload["batch"].data is payload["experience"]
                self.of_trainer.append(len(payload["experience"]))
            case "maker.loop_end":
                self.of_makers["ends"].append(payload["state"].global_step)
        step = payload["state"].global_step if "state" in payload else None
        self.heard.append((event, step))


class Counts(TrainerCallback):
    def __init__(self):
        self.steps, self.seen_by = 0, os.getpid()

    def on_batch_end(self, metrics, experience):
        assert experience is not None
        self.steps += 1
        self.seen_by = os.getpid()


class Makes(MakerCallback):
    def __init__(self):
        self.made, self.seen_by, self.lock = 0, os.getpid(), None

    def on_loop_start(self):
        self.lock = threading.Lock()

    def on_weights_loaded(self, version):
        self.seen_by = os.getpid()

    def on_make_experience_end(self, experience):
        self.made += len(experience)

    def on_loop_end(self):
        print("made", self.made, end="")


@dataclass(frozen=True)
class Watched:
    """The run, the callbacks that were given to it, what it printed, and the same run in one process."""

    folder: Path
    lines: list[str]
    watching: Watching
    counts: Counts
    makes: Makes
    trainer: TrainerPerformanceEvaluator
    maker: ExperienceMakerPerformanceEvaluator

    @property
    def on_ray(self) -> dict:
        return header(self.folder, "ray")

    @property
    def local(self) -> dict:
        return header(self.folder, "local")

    def printed_by(self, actor: str) -> list[str]:
        return [line.removeprefix(f"[{actor}] ") for line in self.lines if line.startswith(f"[{actor}] ")]


def watch_a_run(folder: Path) -> Watched:
    settings = {
        "max_staleness": 2, "reward": {"functions": ["tests.integration.chatty:chatty"], "workers": 1},
        "checkpoint": {"save_every": 1}, "eval": [{"name": "held_out", "count": 4, "run_every": 1, "baseline": False}],
    }  # fmt: skip
    watching, counts, makes = Watching(), Counts(), Makes()
    trainer = TrainerPerformanceEvaluator(3000, ignore_first_episodes=0)
    maker = ExperienceMakerPerformanceEvaluator(3000, ignore_first_batches=0)
    listeners = [LoggingCallback, watching, counts, makes, trainer, maker]  # noqa: F821 - the first as a factory
    listeners += [ServiceLogger(folder / "calls.jsonl")]
    with redirect_stdout(io.StringIO()) as printed, pytest.MonkeyPatch.context() as patch:
        patch.setattr("proa.runtime.ray.driver.END_SECONDS", 60.0)  # for the makers' last words, on a busy machine
        digest(folder, "ray", runtime="ray", makers=2, callbacks=listeners, progress=False, **settings)
    with redirect_stdout(io.StringIO()):
        digest(folder, "local", **settings)
    return Watched(folder, printed.getvalue().splitlines(), watching, counts, makes, trainer, maker)
