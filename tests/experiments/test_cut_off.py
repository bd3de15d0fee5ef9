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
from tests.experiments.small_experiment import BENCHMARK, RUN, Listener

from proa import Callback
from proa.cli.main import main
from proa.config import ConfigError
from proa.experiments import Experiment
from proa.record.run_lock import RunLockedError, lock
from proa.resume.configuration import _follow_moved_paths

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


LORA = {"rank": 2, "target_modules": ["q_proj"]}
DATA = [{"source": "sort_digits", "count": 32}, {"source": "reverse_digits", "count": 32}]
STAGES = {"n_repeats": 1, "continual": {"datasets": DATA}}


@pytest.mark.parametrize("lora", [{}, {"lora": LORA}], ids=["whole weights", "adapters"])
def test_stages_whose_folder_was_moved_are_still_of_this_experiment(tmp_path, lora):
    stages = STAGES | {"runs": {"a": {**RUN, "eval": [], **lora}}}
    first = told(run(tmp_path / "first", **stages))
    (tmp_path / "first").rename(tmp_path / "moved")
    listener = Listener()
    assert told(run(tmp_path / "moved", [listener], **stages)) == first
    assert listener.heard == ["experiment_start", "experiment_end completed"]


@pytest.mark.parametrize(
    ("saved", "planned", "same"),
    [
        ("old/e/a/model", "new/e/a/model", True),
        ("old/e/a/model", "old/e/a/model", True),
        ("old/e/a/model", "new/e/b/model", False),
        ("old/ex/a/model", "new/ex/a/model", False),
        (None, "new/e/a/model", False),
    ],
)
def test_only_what_lies_in_the_folder_is_moved_with_it(saved, planned, same):
    found = _follow_moved_paths({"model": {"path": saved}}, {"model": {"path": planned}}, "old/e", "new/e")
    assert (found == {"model": {"path": planned}}) == same


class Leave(Callback):
    """Is interrupted after the first checkpoint of a run."""

    def __init__(self, at):
        self.at = at

    def on_checkpoint(self, state, row):
        if state.ctx.run_key == self.at and not row.final:
            raise KeyboardInterrupt


def test_a_stage_that_was_cut_off_goes_on_where_its_folder_was_moved_to(tmp_path):
    stages = STAGES | {"runs": {"a": {**RUN, "eval": [], "checkpoint": {"save_every": 1}}}}
    whole = told(run(tmp_path / "whole", **stages))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "first", [Leave("a_stage1")], **stages)
    (tmp_path / "first").rename(tmp_path / "moved")
    assert told(run(tmp_path / "moved", **stages)) == whole
    assert digests(tmp_path / "moved") == digests(tmp_path / "whole")


def test_a_stage_in_a_moved_folder_is_gone_on_with_by_itself(tmp_path):
    stages = STAGES | {"runs": {"a": {**RUN, "eval": [], "checkpoint": {"save_every": 1}}}}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "first", [Leave("a_stage1")], **stages)
    (tmp_path / "first").rename(tmp_path / "moved")
    (stage,) = (tmp_path / "moved").glob("*/a_stage1")
    assert main(["resume", str(stage)]) == 0
    assert json.loads((stage / "run.json").read_text())["status"] == "completed"


def test_a_moved_stage_that_went_on_from_other_weights_is_refused(tmp_path):
    stages = STAGES | {"runs": {"a": {**RUN, "eval": []}}}
    run(tmp_path / "first", **stages)
    (tmp_path / "first").rename(tmp_path / "moved")
    config = tmp_path / "moved" / "e" / "a_stage1" / "config.json"
    config.write_text(config.read_text().replace("a_stage0/model", "b_stage0/model"))
    with pytest.raises(ConfigError, match=r"belongs to another experiment: .*model\.path was '.*b_stage0/model'"):
        run(tmp_path / "moved", **stages)


def test_two_processes_cannot_run_one_experiment(tmp_path):
    (tmp_path / "e").mkdir()
    with lock(tmp_path / "e"), pytest.raises(RunLockedError):
        run(tmp_path)


@pytest.mark.prove  # smaller ones are in test_several_at_once.py
def test_runs_at_once_give_what_runs_one_after_the_other_give(tmp_path):
    one_by_one = told(run(tmp_path / "one", n_repeats=1))
    at_once = told(run(tmp_path / "several", n_repeats=1, max_concurrent_arms=2))
    assert at_once == one_by_one
    assert digests(tmp_path / "several") == digests(tmp_path / "one")


@pytest.mark.prove
@pytest.mark.parametrize("steps", [0, 1, 3, 5, 7])
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_real_kill(tmp_path, steps, at_once):
    """When so many steps are in the record."""
    file = tmp_path / "e.yaml"
    file.write_text(yaml.safe_dump(CONFIG | {"output_dir": str(tmp_path / "killed"), "max_concurrent_arms": at_once}))
    process = subprocess.Popen([sys.executable, "-m", "proa", "experiment", str(file)], start_new_session=True)
    while process.poll() is None and steps_in(tmp_path / "killed") < steps:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    whole = told(run(tmp_path / "whole"))
    for folder in (tmp_path / "killed").glob("e/*/"):  # runs in processes of their own notice, save and leave
        with lock(folder, patience=120.0):
            pass
    assert told(run(tmp_path / "killed", max_concurrent_arms=at_once)) == whole
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")


def steps_in(output_dir):
    return sum(len(path.read_text().splitlines()) for path in output_dir.glob("e/*/metrics.jsonl"))
