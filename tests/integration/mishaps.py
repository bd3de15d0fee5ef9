"""Things that happen to makers and trainers, as callbacks that live where they happen. Each happens once in a run."""

import gc
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import torch.distributed

from proa import MakerCallback, TrainerCallback
from proa.roles.maker import ExperienceMakerHolder


def first_time(marker: Path) -> bool:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    marker.write_text(str(os.getpid()))
    return True


class AtVersion(MakerCallback):
    """The first maker that loads that version comes to grief while it makes its next lease."""

    def __init__(self, marker: Path, version: int = 2) -> None:
        self.marker, self.version = marker, version
        self.loaded = -1

    def on_weights_loaded(self, version):
        self.loaded = max(self.loaded, version)  # a lease of the version before may still be begun, and load that again

    def on_make_experience_start(self):
        if self.loaded >= self.version and first_time(self.marker):
            self.mishap()


class IsKilled(AtVersion):
    """As if its machine had died."""

    def mishap(self):
        print("farewell", end="")
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(AtVersion):
    def mishap(self):
        time.sleep(1000)


class IsStopped(AtVersion):
    """The whole process, so that it does not even say that it lives."""

    def mishap(self):
        os.kill(os.getpid(), signal.SIGSTOP)


class ReturnsGarbage(AtVersion):
    """Its engine does, in one step: log-probabilities that are none. Early, for hooks fire when a lease is handed in,
    and there must be steps after that."""

    def __init__(self, marker: Path, version: int = 0) -> None:
        super().__init__(marker, version)

    def mishap(self):
        maker = next(thing for thing in gc.get_objects() if isinstance(thing, ExperienceMakerHolder))
        honest = maker.engine.step

        def step():
            maker.engine.step = honest
            return [replace(one, log_probs=(float("nan"),) * len(one.log_probs)) for one in honest()]

        maker.engine.step = step


class TrainerAtStep(TrainerCallback):
    """Comes to grief in that step; with several trainers, the one with that rank."""

    all_ranks = True

    def __init__(self, step: int = 2, rank: int = 0) -> None:
        self.step, self.rank, self.steps = step, rank, 0

    def on_batch_start(self):
        own = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        if self.steps == self.step and own == self.rank:
            self.mishap()
        self.steps += 1


class TrainerIsKilled(TrainerAtStep):
    def mishap(self):
        os.kill(os.getpid(), signal.SIGKILL)


class TrainerFails(TrainerAtStep):
    def mishap(self):
        raise OSError("the disk is full")
