"""Ray's own failures: calls that are lost on the way there, and on the way back."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.integration.small_run import SMALL, digest

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

PUSH = "CoreWorkerService.grpc_client.PushTask"


def train_with_failures(tmp_path, repository, *, failures, name="lossy", **changes):
    """A run in a cluster of its own where calls get lost; its digest, and how many were."""
    config = {**SMALL, "runtime": "ray", "name": name, "output_dir": str(tmp_path), **changes}
    (tmp_path / "lossy.yaml").write_text(yaml.safe_dump(config))
    chances = {"num_failures": failures, "req_failure_prob": 15, "resp_failure_prob": 15, "in_flight_failure_prob": 0}
    run = subprocess.Popen(
        [sys.executable, "-m", "proa", "train", "lossy.yaml"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(repository / "src"),
            "RAY_testing_rpc_failure": json.dumps({PUSH: chances}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    out, _ = run.communicate(timeout=500)
    assert run.returncode == 0, out
    (session,) = Path("/tmp/ray").glob(f"session_*_{run.pid}")  # where Ray keeps it, on Linux
    injected = [
        found
        for log in (session / "logs").glob("python-core-*.log")
        for found in re.findall(f"Inject RPC (request|response) failure for {PUSH}", log.read_text(errors="replace"))
    ]
    return json.loads((tmp_path / name / "run.json").read_text())["weights_digest"], injected


@pytest.mark.prove  # repeated and reordered deliveries in process: tests/leases/test_book.py
def test_lost_calls_and_lost_replies_change_nothing(tmp_path, repository):
    lossy, injected = train_with_failures(tmp_path, repository, failures=6, makers=2)
    assert {"request", "response"} <= set(injected)
    assert lossy == digest(tmp_path, "local")


@pytest.mark.prove
@pytest.mark.parametrize("makers", [1, 2, 3])
@pytest.mark.parametrize("trainers", [1, 2])
def test_hundreds_of_them_neither(tmp_path, repository, makers, trainers):
    settings = {"train_batch_size": 12, "total_steps": 12, "makers": makers, "trainers": trainers}
    lossy, injected = train_with_failures(tmp_path, repository, failures=200, **settings)
    assert len(injected) > 30
    calm, _ = train_with_failures(tmp_path, repository, failures=0, name="calm", **settings)
    assert lossy == calm
    if trainers == 1:
        assert lossy == digest(tmp_path, "local", **{**settings, "makers": 1})
