"""Whole runs at a real vLLM server: one digest for any number of makers, resumed, and over the death of the server."""

import json

import pytest
from tests.digests import StopAfter
from tests.integration.conftest import ray_cluster as ray_cluster
from tests.small import DETACHED, MODEL
from tests.vllm_server.server import KEY, MISSING, RunningServer, python_with_vllm

from proa import recipes
from proa.lifecycle.hooks import Callback
from proa.policy.models import load_model, save_model
from proa.runtime.supervisor import RunFailedError

pytestmark = [pytest.mark.prove, pytest.mark.skipif(python_with_vllm() is None, reason=MISSING)]

SERVED = {**MODEL, "hidden_size": 64, "tie_word_embeddings": True}
"""vLLM's heads have 32 numbers at the least."""
STEPS = 6
PATIENCE = 900.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "served"
    save_model(load_model(SERVED, seed=0), None, path)
    return path


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    running = RunningServer(folder, tmp_path_factory.mktemp("server") / "log.txt")
    try:
        yield running.wait()
    finally:
        running.kill()


@pytest.fixture(scope="session", autouse=True)
def key():
    """Before Ray is started: its actors have the environment that it was started in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROA_VLLM_API_KEY", KEY)
        yield


def trained(folder, name, server, **changes):
    """The header of a run."""
    engine = {"kind": "vllm", "address": server.address, "params": {"patience": PATIENCE}}
    held_out = [{"name": "held_out", "count": 8, "run_every": 2}]  # an engine of its own, at the same server
    settings = {
        **DETACHED, "model": {"config": SERVED}, "engine": engine, "total_steps": STEPS, "makers": 2,
        "wait_timeout": PATIENCE, "eval": held_out, **changes,
    }  # fmt: skip
    recipes.grpo(**settings, output_dir=folder, name=name)
    return header(folder, name)


def header(folder, name):
    return json.loads((folder / name / "run.json").read_text())


def measured(folder, name):
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [row["maker.probe_gap"] for row in rows if "maker.probe_gap" in row]


def versions_by_step(folder, name):
    """Of the weights that sampled the tokens which a run kept."""
    found = {}
    for file in sorted((folder / name / "rollouts").glob("*.jsonl")):
        for row in map(json.loads, file.read_text().splitlines()):
            found.setdefault(row["step"], set()).update(row["versions"])
    return found


class ServerDies(Callback):
    """Without a warning, while makers sample for the next steps; it is started again at once."""

    def __init__(self, server):
        self.server = server

    def on_step_end(self, state, step_idx, batch, metrics):
        if step_idx == 1:
            self.server.kill()
            self.server.start()


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """A run that nothing happens to."""
    folder = tmp_path_factory.mktemp("runs")
    found = trained(folder, "whole", server)
    assert found["engine"]["independent"]
    assert found["ledger"]["trained"] == STEPS * 8
    assert found["ledger"]["dropped"] == {}
    gaps = measured(folder, "whole")
    assert len(gaps) >= STEPS - 1  # of versions 0 to 4: nothing is sampled with those after
    assert max(gaps) < 1e-5
    return found


def test_a_server_that_dies_in_the_middle_costs_a_run_nothing(server, whole, tmp_path, caplog):
    found = trained(tmp_path, "killed", server, callbacks=[ServerDies(server)])
    assert "is there again" in caplog.text
    assert found["weights_digest"] == whole["weights_digest"]
    assert found["ledger"] == whole["ledger"]
    assert found["evals"] == whole["evals"]
    assert found["policy_version"] == whole["policy_version"] == STEPS
    assert versions_by_step(tmp_path, "killed") == {step: {max(0, step - 1)} for step in range(STEPS)}


def test_one_maker_and_a_resumed_run_end_as_two_that_were_never_stopped(server, whole, tmp_path):
    assert trained(tmp_path, "one", server, makers=1)["weights_digest"] == whole["weights_digest"]
    with pytest.raises(RuntimeError, match="stopped here"):
        trained(tmp_path, "cut", server, callbacks=[StopAfter(2)], checkpoint={"save_every": 1})
    resumed = trained(tmp_path, "cut", server, resume="auto", checkpoint={"save_every": 1})
    assert resumed["weights_digest"] == whole["weights_digest"]


def test_makers_on_ray_share_the_server_and_end_with_the_same_digest(server, whole, tmp_path, ray_cluster):
    on_ray = trained(tmp_path, "ray", server, runtime="ray")
    assert on_ray["weights_digest"] == whole["weights_digest"]
    assert on_ray["ledger"] == whole["ledger"]


def test_a_server_whose_head_stays_old_ends_the_run_with_both_numbers(folder, tmp_path):
    stale = RunningServer(folder, tmp_path / "log.txt", extension="tests.vllm_server.stale.StaleHead")
    try:
        with pytest.raises(RunFailedError, match="They do not compute the same policy"):
            trained(tmp_path, "stale", stale.wait(), **{"optimizer.learning_rate": 0.1})
    finally:
        stale.kill()
    told = header(tmp_path, "stale")
    assert told["status"] == "failed"
    assert "apart, and 0.001 is allowed" in told["stop_reason"]
