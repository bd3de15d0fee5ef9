"""The same run on Ray: the same weights, whatever happens to makers, and callbacks where they belong."""

import json
import os
import signal
import threading

import pytest
from tests.algorithms.signed import Signed
from tests.integration.mishaps import IsKilled
from tests.integration.small_run import SMALL, digest, header
from tests.integration.test_ray_logger import check_runs
from tests.integration.watched_run import Watching

from proa import CallbackManager, MakerCallback
from proa.config import ConfigError
from proa.errors import SettingError
from proa.policy.log_probs import UnsupportedModelError
from proa.recipes import grpo, ppo
from proa.record.live import LiveFile
from proa.runtime.supervisor import RunFailedError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_weights_are_those_of_the_local_run(watched):
    assert watched.on_ray["weights_digest"] == watched.local["weights_digest"]
    assert watched.on_ray["ledger"] == watched.local["ledger"]


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


def test_callbacks_in_the_driver_hear_the_documented_order(watched):
    events = [event for event, _ in watched.watching.heard if not event.startswith(("wait_", "maker."))]
    step = ["step_start", "gradients_ready", "step_end", "eval_start", "eval_end", "benchmark_eval", "checkpoint_saved"]
    episode = ["episode_start", "epoch_start", *step, "epoch_end", "update_start", "update_end", "episode_end"]
    training = ["train_start", *episode * 4, "train_end"]
    assert events == ["experiment_start", "run_start", *training, "run_end", "experiment_end"]
    assert [step for event, step in watched.watching.heard if event == "step_end"] == [1, 2, 3, 4]
    rows = [json.loads(line) for line in (watched.folder / "ray" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [0, 1, 2, 3]


def test_the_ancestors_logger_hears_a_plain_run(watched):
    check_runs(watched.folder / "calls.jsonl", ["ray"], 4, [])


def test_callbacks_in_the_driver_that_read_the_batch_get_the_trained_one(watched):
    assert watched.watching.of_trainer == [SMALL["train_batch_size"]] * 4


def test_callbacks_of_trainers_and_makers_live_in_their_actors(watched):
    # The first maker may have done all the work before the second is up.
    makers = [copy for copy in watched.makes.actor_copies.values() if copy.made]
    assert 1 <= len(makers) <= 2
    places = [watched.counts.seen_by, *(copy.seen_by for copy in makers)]
    assert len({os.getpid(), *places}) == 1 + len(places)


def test_the_driver_hears_what_makers_do(watched):
    heard = watched.watching.of_makers
    assert set(heard["versions"]) <= {0, 1}  # four episodes, two of them behind: the last loads version 1
    assert heard["lengths"] == [2] * 16
    assert sum(heard["ends"]) == 16


def test_the_last_view_is_of_the_end(watched):
    view = LiveFile.read(watched.folder / "ray")
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


@pytest.mark.prove  # of an error in a trainer: below, and in test_ray_faults.py
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
        (grpo, {"model": {**SMALL["model"], "dtype": "float23"}}, "model.dtype: write float32, .*, not 'float23'"),
        (grpo, {"model": {**SMALL["model"], "device": "gpu"}}, "model.device: write cpu, cuda or cuda:0, not 'gpu'"),
        (grpo, {"model": {"config": GPT_NEO}}, "the native engine does not know models of type 'gpt_neo'"),
        (ppo, {"critic": {"kind": "separate", "path": "nowhere"}}, "no reward model in nowhere"),
    ],
    ids=["dtype", "device", "engine", "critic"],
)
def test_mistakes_that_show_without_weights_are_reported_before_anything_starts(tmp_path, recipe, changes, message):
    with pytest.raises((SettingError, ConfigError), match=message):
        digest(tmp_path, "ray", recipe, runtime="ray", **changes)
    assert not (tmp_path / "ray").exists()


@pytest.mark.prove
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
    model = {**SMALL["model"], "device": "cpu", "dtype": "float32"}
    settings = {**SMALL, "model": model, "runtime": "ray", "output_dir": str(tmp_path), "lora": {"rank": 2}}
    config = load_run_config(None, **settings, eval=[{"name": "held_out", "count": 2}])
    with place_callbacks(config, None) as listeners:
        assert RayRun(config, Given(), listeners).inputs.rows.count == 64
        too_long = load_run_config(None, **{**settings, "sampling": {"group_size": 2, "max_new_tokens": 24}})
        with pytest.raises(ConfigError, match="leaves no room for a prompt"):
            RayRun(too_long, Given(), listeners)
