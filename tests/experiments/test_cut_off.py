"""An experiment that was cut off, and begun again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml
from small_experiment import BENCHMARK, RUN, Listener

from proa import Callback
from proa.config import ConfigError
from proa.experiments import Experiment
from proa.record.run_lock import RunLockedError, lock

CONFIG = {
    "name": "e", "runs": {"a": RUN, "b": {**RUN, "optimizer": {"learning_rate": 1e-2}}}, "n_repeats": 2, "base_seed": 0,
    "metadata": {"benchmark": [BENCHMARK], "success_metric": "after.by_place"},
}  # fmt: skip


def run(output_dir, callbacks=(), **changes):
    return Experiment(CONFIG | {"output_dir": str(output_dir)} | changes, callbacks).run()


def told(result):
    """What an experiment came to, without its times and places."""
    return {
        "arms": {
            arm.name: (arm.status, arm.eval_metrics, [(e.name, e.step, e.metrics) for e in arm.evals])
            for arm in result.arms
        },
        "best": (result.best_arm, result.best_score),
        "conclusion": result.conclusion,
    }


def digests(output_dir):
    return {
        path.parent.name: json.loads(path.read_text())["weights_digest"] for path in output_dir.glob("e/*/run.json")
    }


class CopyFolder(Callback):
    """Copies the experiment's folder at every step and at every run's end: as a kill would leave it there."""

    def __init__(self, folder, into):
        self.folder, self.into, self.copies = folder, into, []

    def _copy(self):
        place = self.into / str(len(self.copies))
        shutil.copytree(self.folder / "e", place / "e")
        self.copies.append(place)

    def on_step_end(self, state, step_idx, batch, metrics):
        self._copy()

    def on_run_end(self, ctx, run_result, arm):
        self._copy()


def test_an_experiment_killed_anywhere_ends_as_the_uninterrupted_one(tmp_path):
    copying = CopyFolder(tmp_path / "whole", tmp_path / "copies")
    whole = told(run(tmp_path / "whole", [copying]))
    assert len(copying.copies) == 12
    for place in copying.copies[1::3]:
        listener = Listener()
        done = {path.parent.name for path in place.glob("e/*/arm.json")}
        assert told(run(place, [listener])) == whole
        assert digests(place) == digests(tmp_path / "whole")
        assert not any(f"run_start {name}" in listener.heard for name in done)


def test_what_is_complete_is_not_run_again(tmp_path):
    first = told(run(tmp_path))
    listener = Listener()
    assert told(run(tmp_path, [listener])) == first
    assert listener.heard == ["experiment_start", "experiment_end completed"]


def test_more_repeats_can_be_added(tmp_path):
    run(tmp_path)
    listener = Listener()
    result = run(tmp_path, [listener], n_repeats=3)
    assert [line for line in listener.heard if line.startswith("run_start")] == ["run_start a__s2", "run_start b__s2"]
    assert result.groups["a"].metrics["after.by_place"].n == 3


def test_another_experiment_in_the_same_folder_is_refused(tmp_path):
    run(tmp_path)
    other = {"a": {**RUN, "train_batch_size": 2}, "b": RUN}
    with pytest.raises(ConfigError, match="train_batch_size was 4 and is 2"):
        run(tmp_path, runs=other)


def test_two_processes_cannot_run_one_experiment(tmp_path):
    (tmp_path / "e").mkdir()
    with lock(tmp_path / "e"), pytest.raises(RunLockedError):
        run(tmp_path)


def test_runs_at_once_give_what_runs_one_after_the_other_give(tmp_path):
    one_by_one = told(run(tmp_path / "one", n_repeats=1))
    at_once = told(run(tmp_path / "several", n_repeats=1, max_concurrent_arms=2))
    assert at_once == one_by_one
    assert digests(tmp_path / "several") == digests(tmp_path / "one")


@pytest.mark.prove
@pytest.mark.parametrize("seconds", [5.0, 6.0, 7.0, 8.0, 10.0])
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_real_kill(tmp_path, seconds, at_once):
    file = tmp_path / "e.yaml"
    file.write_text(yaml.safe_dump(CONFIG | {"output_dir": str(tmp_path / "killed"), "max_concurrent_arms": at_once}))
    process = subprocess.Popen([sys.executable, "-m", "proa", "experiment", str(file)], start_new_session=True)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(3 if at_once > 1 else 0)  # runs in processes of their own notice, and save
    whole = told(run(tmp_path / "whole"))
    assert told(run(tmp_path / "killed", max_concurrent_arms=at_once)) == whole
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
