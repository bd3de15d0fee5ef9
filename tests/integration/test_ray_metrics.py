"""Metrics of one's own on Ray: rows as in a local run, wherever the hook that logs lives; gradients stay there."""

import json
import os

import pytest
from tests.integration.small_run import SMALL
from tests.run.test_own_metrics import Logs, LogsInMaker, LogsInTrainer, rows

from proa import Callback, CallbackManager
from proa.errors import HookError
from proa.recipes import grpo

DRIVER = os.getpid()


class Rows(Callback):
    """Hears in the driver what a logger would, and looks at the batch."""

    def __init__(self):
        self.heard = []

    def on_step_end(self, state, step_idx, batch, metrics):
        assert os.getpid() == DRIVER
        self.heard.append((step_idx, len(batch.data), batch.loss_fn))

    def on_metrics(self, state, step_idx, metrics):
        self.heard.append((step_idx, dict(metrics)))


def listening():
    manager = CallbackManager()
    manager.on("maker.make_experience_end")(lambda state: state.log("my.by_function", 3))
    return manager


def run(tmp_path, name, **changes):
    heard = Rows()
    callbacks = [listening(), Logs(), LogsInTrainer(), LogsInMaker(), heard]
    settings = {**SMALL, "output_dir": tmp_path, "name": name, "total_steps": 2, "checkpoint": {"save_every": 2}}
    state = grpo(**settings, **changes, callbacks=callbacks)
    return rows(tmp_path / name), heard.heard, {key: state.logged[key] for key in sorted(state.logged)}


@pytest.mark.prove
@pytest.mark.usefixtures("ray_cluster")
def test_rows_are_those_of_a_local_run(tmp_path):
    local, there = run(tmp_path, "local"), run(tmp_path, "ray", runtime="ray", makers=2)
    assert there == local
    assert local[0][0]["my.by_function"] == 3.0
    last = json.loads((tmp_path / "ray" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["my.end"]) == (1, 2)


def test_a_function_in_the_driver_that_reads_gradients_is_refused_before_anything_starts(tmp_path):
    manager = CallbackManager()
    manager.on("gradients_ready")(lambda gradients: print(gradients))
    with pytest.raises(HookError, match="gradients stay with the trainer: derive a class from TrainerCallback"):
        grpo(**SMALL, output_dir=tmp_path, name="run", runtime="ray", callbacks=manager)


def logs(completions, completion_ids, policy_version, log_metric, log_extra):
    log_metric("seen.version", max(policy_version))
    log_extra("seen.tokens", [len(ids) for ids in completion_ids])
    return [float(text.count("1")) for text in completions]


@pytest.mark.prove
@pytest.mark.usefixtures("ray_cluster")
def test_what_rewards_log_and_shares_of_samples_are_those_of_a_local_run(tmp_path):
    names = ("seen.version", "seen.tokens", "reward_zero_std_fraction", "truncated_fraction", "held.logs")
    changes = {
        "reward": {"functions": logs, "workers": 0},
        "sampling": {"group_size": 2, "max_new_tokens": 7, "stop": "2"},
    }
    changes["eval"] = [{"name": "held", "source": [{"prompt": "12>"}, {"prompt": "34>"}]}]
    found = []
    for name, runtime in {"local": {}, "ray": {"runtime": "ray", "makers": 2}}.items():
        grpo(**{**SMALL, "output_dir": tmp_path, "name": name, "total_steps": 3, **changes, **runtime})
        written = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        digest = json.loads((tmp_path / name / "run.json").read_text())["weights_digest"]
        found.append((digest, [{key: row[key] for key in names if key in row} for row in written]))
    assert found[0] == found[1]
    assert {key for row in found[0][1] for key in row} == set(names)
