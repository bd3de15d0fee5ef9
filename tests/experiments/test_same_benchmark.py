"""A benchmark in the loop and after training under one name: rows are by name and step, none is lost or twice."""

import json
import signal

import pytest
from tests.experiments.small_experiment import RUN, Listener
from tests.experiments.test_ends_of_runs import Signals

from proa.experiments import Experiment
from proa.record.evals import EvalRecord

AFTER = {"name": "held_out", "count": 6, "metric": "proa.tasks.builtin.places:by_place"}
CONFIG = {
    "name": "e", "run": RUN, "metadata": {"benchmark": [AFTER], "success_metric": "held_out.by_place"},
}  # fmt: skip
ROWS = [("held_out", 0), ("held_out", 1), ("held_out", None)]


def carry_out(tmp_path, *callbacks, **changes):
    return Experiment(CONFIG | {"output_dir": str(tmp_path)} | changes, list(callbacks)).run()


def rows(results):
    return [(result.name, result.step) for result in results]


def test_every_row_is_there_and_the_one_after_training_counts(tmp_path):
    listener = Listener()
    (arm,) = carry_out(tmp_path, listener).arms
    assert rows(arm.evals) == ROWS
    assert arm.eval("held_out").step is None
    assert arm.eval("held_out", step=0).metrics.keys() >= {"exact"}
    assert (arm.eval("held_out", step=7), arm.eval("other")) == (None, None)
    assert arm.eval_metrics["held_out"] == arm.eval("held_out").metrics
    assert arm.score("held_out.by_place") == arm.eval("held_out").metrics["by_place"]
    heard = [line for line in listener.heard if line.startswith("benchmark_eval")]
    assert heard == ["benchmark_eval held_out 0 4", "benchmark_eval held_out 1 4", "benchmark_eval held_out None 6"]
    record = EvalRecord(tmp_path / "e" / "e")
    assert [len(record.predictions("held_out", step)) for step in (0, 1, None)] == [4, 4, 6]
    assert record.latest()["held_out"].step is None


def test_without_a_benchmark_after_training_the_last_step_counts(tmp_path):
    (arm,) = carry_out(tmp_path, metadata={}).arms
    assert arm.eval("held_out").step == 1
    assert arm.eval_metrics["held_out"] == arm.eval("held_out", step=1).metrics


@pytest.mark.parametrize("cut_off_at", ["train_end e", "benchmark e None", None])
def test_running_it_again_leaves_each_row_once(tmp_path, cut_off_at):
    if cut_off_at is None:
        carry_out(tmp_path)
    else:
        with pytest.raises(KeyboardInterrupt):
            carry_out(tmp_path, Signals(cut_off_at, signal.SIGINT))
    (arm,) = carry_out(tmp_path).arms
    assert rows(arm.evals) == ROWS
    lines = (tmp_path / "e" / "e" / "evals.jsonl").read_text().splitlines()
    assert [(row["name"], row["step"]) for row in map(json.loads, lines)] == ROWS


def test_an_arm_of_an_older_version_is_not_scored_again(tmp_path):
    carry_out(tmp_path)
    path = tmp_path / "e" / "e" / "arm.json"
    content = json.loads(path.read_text())
    content["benchmarks"][0] |= {"kind": "auto", "run_every": 0, "baseline": True, "apart": False}
    path.write_text(json.dumps(content))
    listener = Listener()
    (arm,) = carry_out(tmp_path, listener).arms
    assert listener.heard == ["experiment_start", "experiment_end completed"]
    assert rows(arm.evals) == ROWS
