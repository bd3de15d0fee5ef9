"""What the task of a run asks of a Ray cluster. Nothing is started here."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from tests.experiments.small_experiment import RUN

from proa.config import ConfigError, load_experiment_config, load_run_config

pytest.importorskip("ray")

from proa.experiments.arm_run import ArmRun
from proa.experiments.plan import plan
from proa.experiments.ray_tasks import arm_tasks, task_resources
from proa.runtime.ray import tasks

GRPO = {**RUN, "algorithm": "grpo", "eval": [], "sampling": {"group_size": 2, "max_new_tokens": 7}}


def asked(run, *, cpus=8, gpus=2, **changes):
    return task_resources(load_run_config(None, **{**run, **changes}), cpus, gpus)


def test_a_run_on_the_cpu_asks_for_its_threads_and_no_gpu():
    assert asked(RUN, threads=3, **{"model.device": "cpu"}) == {"num_cpus": 3, "num_gpus": 0}


def test_auto_is_a_gpu_where_a_machine_has_one():
    assert asked(RUN, gpus=1) == {"num_cpus": 1, "num_gpus": 1}
    assert asked(RUN, gpus=0) == {"num_cpus": 1, "num_gpus": 0}


def test_a_run_with_more_threads_than_a_machine_has_cpus_does_not_wait_for_such_a_machine():
    assert asked(RUN, threads=3, cpus=2, gpus=0) == {"num_cpus": 2, "num_gpus": 0}


def test_a_run_on_a_gpu_is_refused_where_no_machine_has_one():
    with pytest.raises(ConfigError, match="model.device is cuda, and no machine of the Ray cluster has a GPU"):
        asked(RUN, gpus=0, **{"model.device": "cuda"})


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_run_on_a_gpu_asks_for_one_because_ray_hides_the_others(device):
    assert asked(RUN, **{"model.device": device}) == {"num_cpus": 1, "num_gpus": 1}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_that_is_on_ray_itself_leaves_the_room_to_its_actors(device):
    on_ray = {"runtime": "ray", "ray": {"trainer": {"num_gpus": 1}, "maker": {"num_gpus": 1}}, "threads": 2}
    assert asked(GRPO, **on_ray, **{"model.device": device}) == {"num_cpus": 0}


class FakeRay:
    """A cluster of two machines that notes what is asked of it."""

    def __init__(self):
        self.asked = []

    def nodes(self):
        machines = [(True, {"CPU": 2.0}), (True, {"CPU": 4.0, "GPU": 1.0}), (False, {"CPU": 64.0, "GPU": 8.0})]
        return [{"Alive": alive, "Resources": has} for alive, has in machines]

    def remote(self, **options):
        self.asked.append(options)
        return lambda function: SimpleNamespace(remote=lambda work: None)


def test_tasks_of_runs_are_started_with_what_they_ask_for_and_the_cluster_has(tmp_path, monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr(tasks, "ray", ray)
    monkeypatch.setattr(tasks, "cluster", lambda address, name: nullcontext())
    config = load_experiment_config(
        None, name="e", output_dir=str(tmp_path), runs={"a": {**RUN, "threads": 3}, "b": {**RUN, "threads": 9}}
    )
    with arm_tasks(config) as start:
        for chain in plan(config):
            start(ArmRun(config, chain[0]))
    assert ray.asked == [{"max_retries": 0, "num_cpus": cpus, "num_gpus": 1} for cpus in (3, 4)]  # auto: there is one


def test_an_arm_that_cannot_be_had_is_told_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "cluster", lambda address, name: nullcontext())
    monkeypatch.setattr(tasks, "ray", SimpleNamespace(nodes=lambda: FakeRay().nodes()[:1]))
    arms = {"a": RUN, "b": {**RUN, "model": {**RUN["model"], "device": "cuda"}}}
    config = load_experiment_config(None, name="e", output_dir=str(tmp_path), runs=arms)
    with pytest.raises(ConfigError, match="has a GPU"), arm_tasks(config):
        pass
