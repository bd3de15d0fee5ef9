"""What the task of a run asks of a Ray cluster. Nothing is started here."""

import pytest
from small_experiment import RUN

from proa.config import load_experiment_config, load_run_config

pytest.importorskip("ray")

from proa.experiments.arm_run import ArmRun
from proa.experiments.plan import plan
from proa.experiments.ray_tasks import ArmTask, resources_of

GRPO = {**RUN, "algorithm": "grpo", "eval": [], "sampling": {"group_size": 2, "max_new_tokens": 7}}


def asked(run, **changes):
    return resources_of(load_run_config(None, **{**run, **changes}))


def test_a_run_on_the_cpu_asks_for_its_threads_and_no_gpu():
    assert asked(RUN, threads=3) == {"num_cpus": 3, "num_gpus": 0}


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_run_on_a_gpu_asks_for_one_because_ray_hides_the_others(device):
    assert asked(RUN, **{"model.device": device}) == {"num_cpus": 1, "num_gpus": 1}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_that_is_on_ray_itself_leaves_the_room_to_its_actors(device):
    on_ray = {"runtime": "ray", "ray": {"trainer": {"num_gpus": 1}, "maker": {"num_gpus": 1}}, "threads": 2}
    assert asked(GRPO, **on_ray, **{"model.device": device}) == {"num_cpus": 0}


def test_the_task_of_a_run_is_started_with_what_it_asks_for(tmp_path):
    config = load_experiment_config(None, name="e", output_dir=str(tmp_path), run={**RUN, "threads": 2})
    started = []
    ArmTask(ArmRun(config, plan(config)[0][0]), lambda function, work, **resources: started.append(resources))
    assert started == [{"num_cpus": 2, "num_gpus": 0}]
