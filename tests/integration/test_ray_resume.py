"""Trainers that are killed: the run goes on by itself from its last checkpoint, and ends as if nothing had been."""

import contextlib
import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.chaos.killed_runs import outcome_of
from tests.integration.mishaps import IsKilled, TrainerAtStep, first_time
from tests.integration.small_run import digest, header

from proa import Callback, CallbackManager, CheckpointManager, TrainerCallback
from proa.runtime.ray.driver import TrainerDiedError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Hangs(TrainerAtStep):
    def mishap(self):
        time.sleep(1000)


class IsKilledSoOften(TrainerAtStep):
    """`kill -9` in that many of a trainer's lives, in its step of that number."""

    def __init__(self, marker: Path, times: int = 1, **where: int) -> None:
        super().__init__(**where)
        self.marker, self.times = marker, times

    def mishap(self):
        if any(first_time(self.marker.with_suffix(f".{n}")) for n in range(self.times)):
            os.kill(os.getpid(), signal.SIGKILL)


class CountsSteps(Callback):
    """In the driver, through all of a trainer's lives; steps that were taken back are taken back here too."""

    state_key = "steps"

    def __init__(self):
        self.heard, self.starts, self.runs = [], [], []

    def on_run_start(self, ctx):
        self.runs.append("start")

    def on_run_end(self, ctx, run_result, arm):
        self.runs.append((run_result.status, run_result.artifacts.steps_run))

    def on_train_start(self, state):
        self.starts.append(state.resumed_from)

    def on_step_end(self, state, step_idx, batch, metrics):
        self.heard.append(step_idx)

    def state_dict(self):
        return {"heard": list(self.heard)}

    def load_state_dict(self, saved):
        self.heard = list(saved["heard"])


def came_to(tmp_path, name):
    outcome = outcome_of(tmp_path / name)
    return {key: outcome[key] for key in ("status", "digest", "steps", "trained", "metrics", "evals", "predictions")}


SAVED_OFTEN = {"checkpoint": {"save_every": 1}, "eval": [{"name": "held_out", "count": 4, "run_every": 2}]}
SAVED_LATE = {"checkpoint": {"save_every": 4}}


@pytest.mark.parametrize(
    ("settings", "killed_at", "went_on_from"),
    [
        (SAVED_OFTEN, 2, "step_2"),
        pytest.param(SAVED_LATE, 1, "the beginning", marks=pytest.mark.prove),
        pytest.param(SAVED_LATE, 0, "the beginning", marks=pytest.mark.prove),
    ],
    ids=["after a checkpoint", "before the first checkpoint", "in the first step"],
)
def test_a_maker_and_a_trainer_that_are_killed_are_started_again_and_change_nothing(
    ray_cluster, tmp_path, settings, killed_at, went_on_from
):
    digest(tmp_path, "local", **settings)
    steps, makers, maker_killed = CountsSteps(), CallbackManager(), tmp_path / "maker killed"
    lost, recreated = [], []
    makers.on("maker.lost")(lambda maker, reason: lost.append(reason))
    makers.on("maker.recreated")(lambda maker: recreated.append(maker))
    killed = [IsKilledSoOften(tmp_path / "killed", step=killed_at), IsKilled(maker_killed, version=0)]
    digest(tmp_path, "ray", runtime="ray", callbacks=[steps, makers, *killed], **settings)
    assert (tmp_path / "killed.0").exists()
    assert maker_killed.exists()
    assert "died" in lost[0]
    assert recreated[0] == "maker_0+1"
    assert came_to(tmp_path, "ray") == came_to(tmp_path, "local")
    told = header(tmp_path, "ray")
    assert told["ledger"] == header(tmp_path, "local")["ledger"]
    (once,) = told["resumed"]
    assert once["checkpoint"] == went_on_from
    assert "trainer_0 died" in once["reason"]
    assert steps.starts == [None, None if went_on_from == "the beginning" else went_on_from]
    assert steps.heard == [0, 1, 2, 3]
    assert steps.runs == ["start", ("completed", 4)]  # one run, whatever became of its trainer


@pytest.mark.prove
def test_with_two_trainers_the_other_one_too(ray_cluster, tmp_path):
    settings = {"runtime": "ray", "trainers": 2, "checkpoint": {"save_every": 1}}
    digest(tmp_path, "quiet", **settings)
    killed = IsKilledSoOften(tmp_path / "killed", step=2, rank=1)
    digest(tmp_path, "killed", callbacks=[killed], **settings)
    assert "trainer_1 died" in header(tmp_path, "killed")["resumed"][0]["reason"]
    assert came_to(tmp_path, "killed") == came_to(tmp_path, "quiet")


@pytest.mark.prove
def test_killed_more_often_than_is_allowed_the_run_fails_and_can_be_gone_on_with(ray_cluster, tmp_path):
    often = {"checkpoint": {"save_every": 1}}
    killed = IsKilledSoOften(tmp_path / "killed", times=2, step=1)
    with pytest.raises(TrainerDiedError, match="trainer_0 died"):
        digest(tmp_path, "ray", runtime="ray", ray={"trainer_restarts": 1}, callbacks=[killed], **often)
    told = header(tmp_path, "ray")
    assert (told["status"], told["steps_run"], len(told["resumed"])) == ("failed", 2, 1)
    assert CheckpointManager(tmp_path / "ray").newest_good()[0].step == 2
    digest(tmp_path, "local", **often)
    digest(tmp_path, "ray", resume="auto", **often)
    assert came_to(tmp_path, "ray") == came_to(tmp_path, "local")


class Interrupts(Callback):
    """Sends the driver the signal that Ctrl-C sends."""

    def on_step_end(self, state, step_idx, batch, metrics):
        if step_idx == 1:
            os.kill(os.getpid(), signal.SIGINT)


class InTrainer(TrainerCallback):
    """Counts steps where the trainer is."""

    steps = 0

    def on_batch_end(self, metrics, experience):
        self.steps += 1


@pytest.mark.prove
def test_an_interrupt_saves_at_a_boundary_and_the_run_goes_on_without_ray(ray_cluster, tmp_path):
    counting = InTrainer()
    with pytest.raises(KeyboardInterrupt):
        digest(tmp_path, "run", runtime="ray", callbacks=[Interrupts(), counting])
    told = header(tmp_path, "run")
    saved, _ = CheckpointManager(tmp_path / "run").newest_good()
    assert (told["status"], told["steps_run"]) == ("cancelled", saved.step)
    assert saved.step in (2, 3)  # the driver may hear of the signal when the next step has begun
    assert counting.steps == saved.step
    digest(tmp_path, "local")
    digest(tmp_path, "run", resume="auto", callbacks=[counting])
    assert counting.steps == 4
    assert came_to(tmp_path, "run") == came_to(tmp_path, "local")


@pytest.mark.prove
def test_the_end_of_the_grace_period_leaves_a_trainer_that_hangs_with_the_checkpoint_before(ray_cluster, tmp_path):
    soon = {"checkpoint": {"save_every": 1, "grace": 0.5}}
    with pytest.raises(KeyboardInterrupt):
        digest(tmp_path, "run", runtime="ray", callbacks=[Interrupts(), Hangs(step=2)], **soon)
    assert header(tmp_path, "run")["status"] == "cancelled"
    assert CheckpointManager(tmp_path / "run").newest_good()[0].step == 2
    digest(tmp_path, "local", **soon)
    digest(tmp_path, "run", resume="auto", **soon)
    assert came_to(tmp_path, "run") == came_to(tmp_path, "local")


@pytest.mark.prove
@pytest.mark.parametrize("number", range(10))
def test_a_trainer_that_is_killed_at_any_instant_changes_nothing(ray_cluster, tmp_path, number):
    settings = {"total_steps": 60, "checkpoint": {"save_every": 3}, "trainers": 1 + number % 2, "train_batch_size": 8}
    digest(tmp_path, "quiet", **settings, runtime="ray")
    killer = threading.Thread(target=kill_a_trainer, args=(tmp_path / "killed", random.Random(number)), daemon=True)
    killer.start()
    digest(tmp_path, "killed", **settings, runtime="ray")
    killer.join(60.0)
    assert came_to(tmp_path, "killed") == came_to(tmp_path, "quiet")


def kill_a_trainer(run_folder, chance):
    """Some time after the run is seen to go on."""
    live = run_folder / "live.json"
    while not live.exists():
        time.sleep(0.05)
    time.sleep(chance.random() * 2.0)
    trainers = [actor for actor in json.loads(live.read_text())["actors"] if actor["role"] == "trainer"]
    with contextlib.suppress(ProcessLookupError):  # the run may be over already
        os.kill(int(Path(chance.choice(trainers)["log"]).stem.rpartition("-")[2]), signal.SIGKILL)
