"""Which callback serves which run."""

from typing import ClassVar

import pytest
from small_experiment import RUN, Listener

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
