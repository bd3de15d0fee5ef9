"""The same run on Ray: the same weights, whatever happens to makers, and callbacks where they belong."""

import json
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.algorithms.signed import Signed
from tests.integration.mishaps import IsKilled
from tests.integration.small_run import SMALL, digest, header

from proa import CallbackManager, MakerCallback, TrainerCallback
from proa.config import ConfigError
from proa.errors import SettingError
from proa.lifecycle.hooks import EveryMoment
from proa.policy.log_probs import UnsupportedModelError
from proa.recipes import grpo, ppo
from proa.record.live import LiveFile
from proa.runtime.supervisor import RunFailedError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@dataclass(frozen=True)
class Recorded:
    """A run on Ray with two makers and everyone listening, and the same run in one process."""

    folder: Path
    on_ray: str
    local: str
    heard: list[tuple[str, int | None]]
    of_makers: dict[str, list[int]]
    of_trainer: list[int]


@pytest.fixture(scope="module")
def recorded(ray_cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "notes").mkdir()
    notes, watching = folder / "notes", Watching()
    listeners = [watching, WhereAmI(notes), AndI(notes)]
    on_ray = digest(folder, "ray", runtime="ray", makers=2, max_staleness=2, callbacks=listeners)
    local = digest(folder, "local", max_staleness=2)
    return Recorded(folder, on_ray, local, watching.heard, watching.of_makers, watching.of_trainer)


def test_weights_are_those_of_the_local_run(recorded):
    assert recorded.on_ray == recorded.local
    assert header(recorded.folder, "ray")["ledger"] == header(recorded.folder, "local")["ledger"]


@pytest.mark.prove
@pytest.mark.parametrize(("makers", "staleness"), [(1, 0), (2, 1), (3, 2)])
def test_with_any_makers_and_staleness_too(ray_cluster, tmp_path, makers, staleness):
    local = digest(tmp_path, "local", max_staleness=staleness)
    assert digest(tmp_path, "ray", max_staleness=staleness, makers=makers, runtime="ray") == local


@pytest.mark.prove
def test_with_an_algorithm_of_ones_own_too_given_as_an_object(ray_cluster, tmp_path):
    settings = {"algorithm": Signed(scale=2.0), "total_steps": 2}
    local = digest(tmp_path, "local", **settings)
    assert digest(tmp_path, "ray", runtime="ray", **settings) == local
    assert digest(tmp_path, "other", **settings | {"algorithm": Signed(scale=0.5)}) != local


@pytest.mark.prove
def test_with_lora_too_where_only_the_adapter_travels(ray_cluster, tmp_path):
    settings = {"lora": {"rank": 2, "alpha": 4.0}, "warm_start": {"steps": 2, "batch_size": 4}, "recipe": ppo}
    settings |= {"total_steps": 2}
    assert digest(tmp_path, "ray", runtime="ray", **settings) == digest(tmp_path, "local", **settings)


@pytest.mark.prove  # a smaller one is in test_ray_faults.py
@pytest.mark.parametrize(
    "settings",
    [{"makers": 2}, {"makers": 1, "lora": {"rank": 2}}],
    ids=str,
)
def test_a_maker_that_is_killed_changes_nothing(ray_cluster, tmp_path, settings):
    """With one maker and LoRA its successor starts after the first push, and needs the base all the same."""
    local = digest(tmp_path, "local", **settings)
    watching = Watching()
    killed = digest(
        tmp_path, "ray", runtime="ray", callbacks=[watching, IsKilled(tmp_path / "killed")], **settings
    )  # fmt: skip
    assert killed == local
    assert (tmp_path / "killed").exists()
    # The other maker may have done all the work before a replacement is up.
    assert [event for event, _ in watching.heard if event in ("maker.lost", "maker.recreated")][0] == "maker.lost"


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


DRIVER = os.getpid()


class WhereAmI(TrainerCallback):
    """Leaves a note of the process it lives in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_batch_end(self, metrics, experience):
        assert experience is not None
        (self.folder / f"trainer-{os.getpid()}").touch()


class AndI(MakerCallback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_weights_loaded(self, version):
        (self.folder / f"maker-{os.getpid()}").touch()


def test_callbacks_in_the_driver_hear_the_documented_order(recorded):
    events = [event for event, _ in recorded.heard if not event.startswith(("wait_", "maker."))]
    episode = ["episode_start", "epoch_start", "step_start", "gradients_ready", "step_end", "epoch_end", "update_start",
               "update_end", "episode_end"]  # fmt: skip
    training = ["train_start", *episode * 4, "checkpoint_saved", "train_end"]
    assert events == ["experiment_start", "run_start", *training, "run_end", "experiment_end"]
    assert [step for event, step in recorded.heard if event == "step_end"] == [1, 2, 3, 4]
    lines = (recorded.folder / "ray" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3]


def test_callbacks_in_the_driver_that_read_the_batch_get_the_trained_one(recorded):
    assert recorded.of_trainer == [SMALL["train_batch_size"]] * 4


def test_callbacks_of_trainers_and_makers_live_in_their_actors(recorded):
    places = {path.name for path in (recorded.folder / "notes").iterdir()}
    trainers = {name for name in places if name.startswith("trainer-")}
    assert len(trainers) == 1
    assert 1 <= len(places - trainers) <= 2  # the first maker may have done all the work before the second is up
    assert f"maker-{DRIVER}" not in places
    assert f"trainer-{DRIVER}" not in places


def test_the_driver_hears_what_makers_do(recorded):
    assert set(recorded.of_makers["versions"]) <= {0, 1}  # four episodes, two of them behind: the last loads version 1
    assert recorded.of_makers["lengths"] == [2] * 16
    assert sum(recorded.of_makers["ends"]) == 16


def test_the_last_view_is_of_the_end(recorded):
    view = LiveFile.read(recorded.folder / "ray")
    trainer, *makers = view.actors
    assert (view.runtime, view.step, view.of, view.ledger["in_flight"]) == ("ray", 4, 4, 0)
    assert (trainer.name, trainer.role, trainer.doing) == ("trainer_0", "trainer", "ended")
    assert trainer.tokens == view.ledger["tokens"]["trained"] > 0
    assert [maker.name for maker in makers] == ["maker_0", "maker_1"]
    assert {"ended"} <= {maker.doing for maker in makers} <= {"ended", "starting", "getting ready"}
    assert all(maker.health != "dead" and not maker.restarts for maker in makers)


@pytest.mark.prove  # with two trainers it is in test_ray_faults.py
def test_a_callback_in_the_driver_stops_the_run(ray_cluster, tmp_path):
    manager = CallbackManager()
    manager.on("step_end")(lambda state: state.stop_training("enough") if state.global_step == 2 else None)
    digest(tmp_path, "ray", runtime="ray", callbacks=manager)
    assert (header(tmp_path, "ray")["steps_run"], header(tmp_path, "ray")["stop_reason"]) == (2, "enough")


def test_an_error_in_it_comes_out_as_it_was_raised(ray_cluster, tmp_path):
    class Unlucky(Exception):  # noqa: N818
        """Cannot be made again from what it keeps."""

        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    manager = CallbackManager()

    @manager.on("step_end")
    def fail(state):
        raise Unlucky("this", "that")

    with pytest.raises(Unlucky, match="this and that"):
        digest(tmp_path, "ray", runtime="ray", callbacks=manager)
    assert header(tmp_path, "ray")["status"] == "failed"


def broken(completions, **_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.prove
def test_when_every_maker_dies_again_and_again_the_run_ends_and_says_so(ray_cluster, tmp_path):
    with pytest.raises(RunFailedError, match="maker_0"):
        digest(
            tmp_path, "ray", runtime="ray", ray={"max_restarts": 2},
            reward={"functions": [f"{__name__}:broken"], "workers": 0},
        )  # fmt: skip
    assert header(tmp_path, "ray")["status"] == "failed"


def test_what_cannot_travel_is_refused_before_anything_starts(ray_cluster, tmp_path):
    class Locked(MakerCallback):
        def __init__(self):
            self.door = threading.Lock()

    with pytest.raises(TypeError, match="attribute 'door'"):
        digest(tmp_path, "ray", runtime="ray", callbacks=[Locked()])
    assert not (tmp_path / "ray").exists()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"maker": {"num_gpu": 1}}, "ray.maker: Invalid option keyword num_gpu"),
        ({"trainer": {"name": "mine"}}, "ray.trainer: name is set by the run itself"),
        ({"trainer": {"num_cpus": -1}}, "ray.trainer: .*num_cpus"),
    ],
)
def test_options_that_ray_does_not_know_are_reported_before_anything_starts(tmp_path, section, message):
    with pytest.raises(ConfigError, match=message):
        digest(tmp_path, "ray", runtime="ray", ray=section)
    assert not (tmp_path / "ray").exists()


def test_on_ray_actors_say_which_gpu_they_take(tmp_path):
    model = {**SMALL["model"], "device": "cuda"}
    with pytest.raises(ConfigError, match=r"set ray.trainer, e.g. \{num_gpus: 1\}"):
        digest(tmp_path, "ray", runtime="ray", model=model)


GPT_NEO = {
    "model_type": "gpt_neo", "vocab_size": 16, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "window_size": 8,
    "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 24,
}  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        (grpo, {"model": {**SMALL["model"], "dtype": "float23"}}, "no dtype 'float23'; .*did you mean"),
        (grpo, {"model": {**SMALL["model"], "device": "gpu"}}, "unknown model.device 'gpu'"),
        (grpo, {"model": {"config": GPT_NEO}}, "the native engine does not know models of type 'gpt_neo'"),
        (ppo, {"critic": {"kind": "separate", "path": "nowhere"}}, "no reward model in nowhere"),
    ],
    ids=["dtype", "device", "engine", "critic"],
)
def test_mistakes_that_show_without_weights_are_reported_before_anything_starts(tmp_path, recipe, changes, message):
    with pytest.raises(SettingError, match=message):
        digest(tmp_path, "ray", recipe, runtime="ray", **changes)
    assert not (tmp_path / "ray").exists()


def test_a_mistake_that_an_actor_finds_leaves_no_folder(ray_cluster, tmp_path):
    changes = {"model": {"config": GPT_NEO}, "engine": {"kind": "hf"}, "optimizer": {"share_prompts": True}}
    with pytest.raises(UnsupportedModelError, match="cannot share prompts"):
        digest(tmp_path, "ray", runtime="ray", **changes)
    assert not (tmp_path / "ray").exists()


def test_the_driver_checks_a_configuration_without_loading_the_model(tmp_path, monkeypatch):
    from proa.config import load_run_config
    from proa.run import loading
    from proa.run.given import Given
    from proa.run.on_ray import RayRun
    from proa.run.placing import place_callbacks

    def never(*_, **__):
        raise AssertionError("the driver loaded a model")

    monkeypatch.setattr(loading, "load_model", never)
    settings = {**SMALL, "runtime": "ray", "output_dir": str(tmp_path), "lora": {"rank": 2}}
    config = load_run_config(None, **settings, eval=[{"name": "held_out", "count": 2}])
    with place_callbacks(config, None) as listeners:
        assert RayRun(config, Given(), listeners).inputs.rows.count == 64
        too_long = load_run_config(None, **{**settings, "sampling": {"group_size": 2, "max_new_tokens": 24}})
        with pytest.raises(ConfigError, match="leaves no room for a prompt"):
            RayRun(too_long, Given(), listeners)
