"""Which callback serves which run."""

from typing import ClassVar

import pytest
from tests.experiments.small_experiment import RUN, Listener

from proa import Callback, CallbackManager
from proa.callbacks.registry import register_callback
from proa.config import ConfigError
from proa.experiments import Experiment

RUN = {**RUN, "eval": []}


class Made(Callback):
    """Remembers all that were made, and what each heard."""

    made: ClassVar[list] = []

    def __init__(self):
        self.heard = []
        Made.made.append(self)

    def on_experiment_start(self, ctx):
        self.heard.append("experiment")

    def on_group_start(self, ctx, group_name):
        self.heard.append(f"group {group_name}")
        ctx.ids[f"group:{group_name}"] = "made"

    def on_run_start(self, ctx):
        self.heard.append(f"run {ctx.run_key} {ctx.ids.get(f'group:{ctx.group_name}')}")

    def on_step_end(self, state, step_idx, batch, metrics):
        self.heard.append("step")


@pytest.fixture(autouse=True)
def nobody_made():
    Made.made.clear()


def test_a_factory_makes_one_for_the_experiment_and_one_for_each_run_and_they_share_ids(tmp_path):
    Experiment({"name": "e", "output_dir": str(tmp_path), "run": RUN, "n_repeats": 2}, [Made]).run()
    heard = [one.heard for one in Made.made]
    assert ["experiment", "group e"] in heard
    assert ["run e__s0 made", "step", "step"] in heard
    assert ["run e__s1 made", "step", "step"] in heard


def test_a_kind_is_made_anew_for_each_run(tmp_path):
    register_callback("made_for_a_test", Made)
    config = {
        "name": "e",
        "output_dir": str(tmp_path),
        "run": RUN,
        "n_repeats": 2,
        "callbacks": [{"kind": "made_for_a_test"}],
    }
    Experiment(config).run()
    heard = [one.heard for one in Made.made]
    assert ["experiment", "group e"] in heard
    assert sum("step" in one for one in heard) == 2


def test_an_instance_is_used_as_it_is(tmp_path):
    instance = Listener()
    Experiment({"name": "e", "output_dir": str(tmp_path), "run": RUN, "n_repeats": 2}, [instance]).run()
    assert [line for line in instance.heard if line.startswith("run_start")] == ["run_start e__s0", "run_start e__s1"]


def test_an_instance_cannot_serve_several_processes(tmp_path):
    config = {"name": "e", "output_dir": str(tmp_path), "run": RUN, "max_concurrent_arms": 2}
    with pytest.raises(ConfigError, match="give a factory"):
        Experiment(config, [Listener()])


def test_functions_of_a_manager_hear_everything_beside_kinds(tmp_path):
    register_callback("made_beside_functions", Made)
    manager, heard = CallbackManager(), []
    manager.on("experiment_start")(lambda ctx: heard.append("experiment"))
    manager.on("step_end")(lambda state: heard.append("step"))
    config = {"name": "e", "output_dir": str(tmp_path), "run": RUN, "callbacks": [{"kind": "made_beside_functions"}]}
    Experiment(config, manager).run()
    assert heard == ["experiment", "step", "step"]
    assert [one.heard for one in Made.made] == [["experiment"], ["run e None", "step", "step"]]
    assert manager.callbacks == []


def test_a_callback_of_ones_own_is_named_by_its_path_for_runs_and_for_the_experiment(tmp_path, monkeypatch):
    (tmp_path / "own_of_runs.py").write_text(
        "from pathlib import Path\nfrom proa import Callback\n"
        "class Telling(Callback):\n"
        "    def __init__(self, path, word):\n"
        "        self.path, self.word = Path(path), word\n"
        "    def _tell(self, what):\n"
        "        with self.path.open('a') as file: print(self.word, what, file=file)\n"
        "    def on_experiment_start(self, ctx): self._tell('experiment')\n"
        "    def on_train_end(self, state, artifacts): self._tell('run')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def section(word):
        return {"kind": "own_of_runs.Telling", "params": {"path": str(tmp_path / "heard"), "word": word}}

    run = {**RUN, "callbacks": [section("run's")]}
    Experiment({"name": "e", "output_dir": str(tmp_path), "run": run, "callbacks": [section("all's")]}).run()
    heard = (tmp_path / "heard").read_text().splitlines()
    assert sorted(heard) == ["all's experiment", "all's run", "run's run"]


@pytest.mark.parametrize(
    ("place", "whose"), [("experiment", "callbacks.0"), ("run", "arm e: callbacks.0")], ids=["experiment", "run"]
)
def test_a_callback_that_is_not_there_is_told_before_anything_runs(tmp_path, place, whose):
    wrong = {"callbacks": [{"kind": "no_such_module.Telling"}]}
    run = {**RUN, **(wrong if place == "run" else {})}
    config = {"name": "e", "output_dir": str(tmp_path), "run": run, **(wrong if place == "experiment" else {})}
    with pytest.raises(ConfigError, match=rf"^{whose} \(no_such_module.Telling\): .*no module"):
        Experiment(config)
    assert not (tmp_path / "e").exists()
