"""The logger of `tests/ancestors`, unchanged, on Ray; of a plain run see test_ray_run.py."""

import pytest
from tests.ancestors.service_logger import ServiceLogger, calls_in, check_calls, runs_in
from tests.small import DETACHED

from proa import Experiment

RUN = {
    **DETACHED, "total_steps": 2, "runtime": "ray", "checkpoint": {"save_every": 1},
    "eval": [{"name": "held_out", "count": 4, "run_every": 1, "baseline": False}],
}  # fmt: skip
STEP = ["step", "eval", "benchmark", "checkpoint"]


def check_runs(path, runs, steps, after):
    calls = calls_in(path)
    check_calls(calls)
    assert list(runs_in(calls)) == runs
    for run in runs_in(calls).values():
        said = [call["call"] for call in run]
        assert said == ["run_start", "train_start", *STEP * steps, "train_end", *after, "run_end"]
        assert (run[-1]["status"], run[-1]["steps"]) == ("completed", steps)
        assert run[-1]["metrics"]["loss"] == [call["loss"] for call in run if call["call"] == "step"][-1]


@pytest.mark.prove
def test_in_an_experiment_with_repeats_and_stages(ray_cluster, tmp_path):
    config = {
        "name": "e", "output_dir": str(tmp_path), "run": {**RUN, "total_steps": 1}, "n_repeats": 2,
        "continual": {"datasets": ["sort_digits"]}, "metadata": {"benchmark": [{"name": "held_out", "count": 4}]},
    }  # fmt: skip
    Experiment(config, [ServiceLogger(tmp_path / "calls.jsonl")]).run()
    check_runs(tmp_path / "calls.jsonl", ["e_stage0__s0", "e_stage0__s1"], 1, ["benchmark_after"])
