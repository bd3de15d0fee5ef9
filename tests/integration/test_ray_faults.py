"""What happens to makers changes nothing, and a trainer that may not be started again ends the run, by its name."""

from pathlib import Path

import pytest
from tests.integration.mishaps import Hangs, IsKilled, IsStopped, ReturnsGarbage, TrainerFails, TrainerIsKilled
from tests.integration.small_run import digest, header

from proa import CallbackManager
from proa.lifecycle.hooks import EveryMoment
from proa.runtime.supervisor import RunFailedError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Watching(EveryMoment):
    """What the driver hears of makers that come and go, of errors, and of the end."""

    def __init__(self):
        self.events, self.lost, self.recreated = [], [], []

    def on_moment(self, event, payload):
        self.events.append(event)
        if event == "maker.lost":
            self.lost.append(payload["reason"])
        elif event == "maker.recreated":
            self.recreated.append(payload["maker"])


def is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("mishap", "reason"),
    [
        pytest.param(IsKilled, "died", marks=pytest.mark.prove),  # a smaller one is in test_ray_resume.py
        pytest.param(IsStopped, "has had lease", marks=pytest.mark.prove),
        pytest.param(ReturnsGarbage, "GarbageError", marks=pytest.mark.prove),
        pytest.param(Hangs, "has had lease", marks=pytest.mark.prove),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_maker_that_comes_to_grief_is_replaced_and_changes_nothing(ray_cluster, tmp_path, capsys, mishap, reason):
    local = digest(tmp_path, "local")
    watching, marker = Watching(), tmp_path / "happened"
    # Only for those that hang: on a busy machine the others might exceed it before they come to grief.
    hurry = {"lease_timeout": 4.0} if reason == "has had lease" else {}
    on_ray = digest(tmp_path, "ray", runtime="ray", callbacks=[watching, mishap(marker)], **hurry)
    assert on_ray == local
    assert header(tmp_path, "ray")["ledger"] == header(tmp_path, "local")["ledger"]
    assert len(watching.lost) == 1
    assert reason in watching.lost[0]
    assert watching.recreated == ["maker_0+1"]
    assert not is_there(int(marker.read_text()))
    if mishap is IsKilled:
        assert "[maker_0] farewell\n" in capsys.readouterr().out, "its last line"


@pytest.mark.prove
def test_with_three_makers_and_two_trainers_too(ray_cluster, tmp_path):
    settings = {"train_batch_size": 12, "runtime": "ray"}
    quiet = digest(tmp_path, "quiet", makers=1, trainers=2, **settings)
    killed = digest(
        tmp_path, "killed", makers=3, trainers=2, callbacks=[IsKilled(tmp_path / "killed-once")], **settings
    )  # fmt: skip
    assert (tmp_path / "killed-once").exists()
    assert killed == quiet


@pytest.mark.prove
@pytest.mark.parametrize(("makers", "trainers"), [(1, 3), (2, 3), (3, 1), (3, 3), (4, 2)])
def test_every_topology_trains_to_the_end(ray_cluster, tmp_path, makers, trainers):
    digest(tmp_path, "ray", runtime="ray", train_batch_size=12, makers=makers, trainers=trainers)
    told = header(tmp_path, "ray")
    assert (told["steps_run"], told["ledger"]["trained"], told["ledger"]["dropped"]) == (4, 4 * 12, {})


@pytest.mark.prove  # of one that is started again: test_ray_resume.py
@pytest.mark.parametrize(
    ("trainers", "rank"),
    [(2, 1), (1, 0), (2, 0)],
)
def test_a_trainer_that_is_killed_ends_the_run_which_says_so(ray_cluster, tmp_path, trainers, rank):
    watching = Watching()
    with pytest.raises(RunFailedError, match=f"trainer_{rank} died"):
        digest(
            tmp_path, "ray", runtime="ray", trainers=trainers, callbacks=[watching, TrainerIsKilled(rank=rank)],
            ray={"trainer_restarts": 0},
        )  # fmt: skip
    told = header(tmp_path, "ray")
    assert (told["status"], told["steps_run"]) == ("failed", 2)
    assert f"trainer_{rank} died" in told["stop_reason"]
    assert_paired(watching.events)
    assert watching.events[-4:] == ["error", "train_end", "run_end", "experiment_end"]


def assert_paired(events):
    """Every start of the trainer's moments has its end."""
    open_ = []
    for event in events:
        if event.startswith("maker."):
            continue
        name, _, side = event.rpartition("_")
        if side == "start":
            open_.append(name)
        elif side == "end":
            assert open_.pop() == name
    assert not open_


@pytest.mark.prove  # a smaller one is in test_ray_run.py
@pytest.mark.parametrize(("trainers", "rank"), [(2, 1), (1, 0)])
def test_an_error_in_a_trainer_comes_out_with_where_it_was(ray_cluster, tmp_path, trainers, rank):
    with pytest.raises(OSError, match="the disk is full") as raised:
        digest(tmp_path, "ray", runtime="ray", trainers=trainers, callbacks=[TrainerFails(rank=rank)])
    notes = "\n".join(raised.value.__notes__)
    assert f"in trainer_{rank}" in notes
    assert "raise OSError" in notes
    assert f"what trainer_{rank} printed is in " in notes


@pytest.mark.prove  # a smaller one is in test_ray_hooks.py
def test_a_stop_in_the_driver_stops_every_trainer(ray_cluster, tmp_path):
    manager = CallbackManager()
    manager.on("step_end")(lambda state: state.stop_training("enough") if state.global_step == 2 else None)
    digest(tmp_path, "ray", runtime="ray", trainers=2, callbacks=manager)
    told = header(tmp_path, "ray")
    assert (told["status"], told["steps_run"], told["stop_reason"]) == ("completed", 2, "enough")
