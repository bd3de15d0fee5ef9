"""Runs of an experiment as tasks of a cluster."""

import pytest
from tests.experiments.small_experiment import RUN

from proa.experiments import Experiment

CONFIG = {
    "name": "e", "runs": {"a": {**RUN, "eval": []}, "b": {**RUN, "eval": [], "train_batch_size": 8}},
    "metadata": {"success_metric": "loss", "mode": "min"},
}  # fmt: skip


@pytest.mark.prove
def test_tasks_give_what_runs_one_after_the_other_give(ray_cluster, tmp_path):
    one_by_one = Experiment(CONFIG | {"output_dir": str(tmp_path / "one")}).run()
    at_once = {"max_concurrent_arms": 2, "arms_on": "ray", "output_dir": str(tmp_path / "tasks")}
    in_tasks = Experiment(CONFIG | at_once).run()
    assert [(arm.name, arm.status, arm.metrics["loss"]) for arm in in_tasks.arms] == [
        (arm.name, arm.status, arm.metrics["loss"]) for arm in one_by_one.arms
    ]
    assert in_tasks.conclusion == one_by_one.conclusion
