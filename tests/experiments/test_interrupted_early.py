"""A run in a process of its own that is interrupted before it can answer: cancelled, and without a traceback."""

import time

import pytest
from tests.experiments.small_experiment import RUN

from proa.config import load_experiment_config
from proa.experiments.arm_run import ArmRun
from proa.experiments.plan import plan
from proa.experiments.processes import ArmProcess


@pytest.mark.parametrize(
    ("seconds", "times"), [(0.0, 1), (0.0, 2), (0.5, 1)], ids=["at once", "twice", "at its imports"]
)
def test_it_is_cancelled_without_a_traceback(tmp_path, capfd, seconds, times):
    config = load_experiment_config(None, name="e", output_dir=str(tmp_path), run=RUN)
    process = ArmProcess(ArmRun(config, plan(config)[0][0]))
    time.sleep(seconds)
    for _ in range(times):
        process.interrupt()
    while not process.ended(0.1):
        pass
    arm, _ = process.outcome()
    assert arm.status == "cancelled"
    assert "its process ended" not in (arm.error or "")  # it could tell of itself
    assert "Traceback" not in capfd.readouterr().err
