"""Hooks on Ray: what they change in makers is trained, what fails in actors is counted, and those in the driver remove
and ship checkpoints that a trainer writes."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.small_run import SMALL, digest, header

from proa import Callback, CallbackManager, CheckpointManager, ErrorPolicy, MakerCallback, TrainerCallback
from proa.callbacks import CheckpointUpload

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
STEPS = 3


class Negate(MakerCallback):
    def on_make_experience_end(self, experience):
        experience.reward *= -1


class MakerFails(MakerCallback):
    error_policy = ErrorPolicy.LOG

    def on_send_start(self):
        raise ValueError("my bug")


class TrainerFails(TrainerCallback):
    error_policy = ErrorPolicy.LOG

    def on_batch_start(self):
        raise ValueError("my bug")


def listening(heard, *others):
    """A list with a function and two managers in it; a function of the first halves rewards."""
    manager, second = CallbackManager(), CallbackManager()
    second.on("step_end", every=2)(lambda step_idx: heard.append(f"second {step_idx}"))

    def on_step_end(step_idx):
        heard.append(f"function {step_idx}")

    @manager.on("maker.make_experience_end")
    def halve(experience):
        experience.reward = experience.reward / 2

    return [*others, manager, on_step_end, second]


class Prunes(Callback):
    """Removes all but the newest, in the driver, while the trainer writes in its own process."""

    def __init__(self):
        self.rows = []

    def on_checkpoint(self, state, row):
        self.rows.append(row)
        assert Path(row.sampler_path, "config.json").is_file()
        for old in state.checkpoint_mgr.rows:
            if old.step < row.step:
                state.checkpoint_mgr.remove(old)


class Stops(Callback):
    """In the driver, before the trainer would end by itself."""

    def on_step_end(self, state, step_idx, batch, metrics):
        if state.global_step == STEPS:
            state.stop_training("enough")


@dataclass(frozen=True)
class Hooked:
    """A run on Ray with all of them, the same run in one process, and one without hooks."""

    folder: Path
    prunes: Prunes
    heard: dict[str, list[str]]
    """What functions of the driver heard, by the run's name."""

    def header(self, name: str) -> dict:
        return header(self.folder / "runs", name)


@pytest.fixture(scope="module")
def hooked(ray_cluster, tmp_path_factory):
    folder, prunes = tmp_path_factory.mktemp("hooked"), Prunes()
    shipped = [prunes, CheckpointUpload(folder / "copies", keep=None)]
    heard = {"local": [], "ray": []}
    saving = {"save_every": 1, "keep": None, "background": True}
    runs = Path("runs")  # not absolute: actors work elsewhere
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        digest(runs, "plain", total_steps=STEPS)
        changing = listening(heard["local"], Negate(), MakerFails(), TrainerFails())
        digest(runs, "local", total_steps=STEPS, callbacks=changing)
        changing = listening(heard["ray"], Negate(), MakerFails(), TrainerFails(), Stops(), *shipped)
        digest(runs, "ray", total_steps=STEPS + 4, checkpoint=saving, callbacks=changing, runtime="ray", makers=2)
    return Hooked(folder, prunes, heard)


def test_hooks_in_actors_and_in_the_driver_change_what_is_trained(hooked):
    there, local, plain = (hooked.header(name)["weights_digest"] for name in ("ray", "local", "plain"))
    assert there == local != plain


def test_functions_and_further_managers_of_a_list_listen_in_the_driver(hooked):
    assert hooked.heard["ray"] == hooked.heard["local"] == ["function 0", "function 1", "second 1", "function 2"]


def test_a_stop_in_the_driver_stops_the_trainer(hooked):
    told = hooked.header("ray")
    assert (told["status"], told["steps_run"], told["stop_reason"]) == ("completed", STEPS, "enough")
    assert told["engine"] == hooked.header("local")["engine"] == {"kind": "native", "independent": True}


def test_errors_in_actors_are_counted(hooked):
    leases = STEPS * SMALL["train_batch_size"] // SMALL["sampling"]["group_size"]
    expected = {"MakerFails": leases, "TrainerFails": STEPS}
    assert hooked.header("local")["callback_errors"] == expected
    on_ray = hooked.header("ray")["callback_errors"]
    assert on_ray["TrainerFails"] == STEPS
    assert on_ray["MakerFails"] >= leases, "makers were ahead when it was stopped"


def test_hooks_in_the_driver_remove_and_upload_checkpoints(hooked):
    copies = CheckpointManager(hooked.folder / "copies" / "ray")
    assert [row.name for row in copies.rows] == ["step_1", "step_2", "step_3"]
    copies.verify(copies.final())
    manager = CheckpointManager(hooked.folder / "runs" / "ray")
    assert [row.name for row in manager.rows] == ["step_3"]
    assert [row.name for row in manager.history] == ["step_1", "step_2", "step_3"]
    assert [row.state_path for row in hooked.prunes.rows] == [
        str(manager.folder / f"step_{step}" / "state") for step in (1, 2, 3)
    ]  # fmt: skip
