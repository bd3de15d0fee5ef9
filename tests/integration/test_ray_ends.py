"""How a run on Ray ends when the driver is told to: within its time, with the right code, and nobody left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.small import MODEL

from proa import CheckpointManager

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

ENDLESS = """\
name: endless
runtime: ray
total_steps: 100000
train_batch_size: 8
makers: 1
sampling: {group_size: 2, max_new_tokens: 7}
model:
  config: SMALL_MODEL
task: {source: sort_digits, count: 64}
reward: {workers: 0}
""".replace("SMALL_MODEL", json.dumps(MODEL))


def children_of(pid):
    """Everyone below a process."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout
    parents = dict(map(int, line.split()) for line in listed.splitlines()[1:])
    found, level = set(), {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


@pytest.fixture
def endless(tmp_path, repository):
    """Starts a run from the command line that goes on until it is ended."""
    started = []

    def start(**flags):
        (tmp_path / "endless.yaml").write_text(ENDLESS)
        environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
        more = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
        run = subprocess.Popen(
            [sys.executable, "-m", "proa", "train", "endless.yaml", "--output_dir", "runs", *more],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )  # fmt: skip
        started.append(run)
        metrics, live = (tmp_path / "runs" / "endless" / name for name in ("metrics.jsonl", "live.json"))
        until = time.monotonic() + 120
        while time.monotonic() < until and not (live.exists() and metrics.read_text().count("\n") > 2):
            assert run.poll() is None, run.communicate()[0]
            time.sleep(0.2)
        return run

    yield start
    for run in started:
        run.kill()
        run.communicate()


def header(tmp_path):
    return json.loads((tmp_path / "runs" / "endless" / "run.json").read_text())


def nobody_is_left(pids):
    until = time.monotonic() + 20
    while time.monotonic() < until and any(_alive(pid) for pid in pids):
        time.sleep(0.2)
    return not [pid for pid in pids if _alive(pid)]


@pytest.mark.prove  # an interrupt of a run on Ray in this process: test_ray_resume.py
@pytest.mark.parametrize(
    ("number", "to_all", "trainers"),
    [(signal.SIGINT, False, 1), (signal.SIGINT, True, 2), (signal.SIGTERM, False, 1), (signal.SIGHUP, True, 1)],
    ids=["SIGINT", "SIGINT to the whole terminal, two trainers", "SIGTERM", "the terminal is closed"],
)
def test_a_signal_ends_the_run_with_130_and_no_process_is_left(tmp_path, endless, number, to_all, trainers):
    run = endless(trainers=trainers)
    below = children_of(run.pid)
    if to_all:
        os.killpg(run.pid, number)
    else:
        run.send_signal(number)
    out, _ = run.communicate(timeout=600)
    assert run.returncode == 130, out
    told = header(tmp_path)
    assert (told["status"], told["stop_reason"]) == ("cancelled", "interrupted")
    assert nobody_is_left(below)
    saved, _ = CheckpointManager(tmp_path / "runs" / "endless").newest_good()
    assert saved.step == told["steps_run"] > 0
    assert f"{saved.step} steps are saved: resume with proa resume runs/endless" in out


@pytest.mark.prove
def test_a_trainer_that_is_killed_for_good_ends_the_run_with_1_and_no_process_is_left(tmp_path, endless):
    run = endless(**{"ray.trainer_restarts": 0})
    below = children_of(run.pid)
    live = json.loads((tmp_path / "runs" / "endless" / "live.json").read_text())
    trainer = next(actor for actor in live["actors"] if actor["role"] == "trainer")
    os.kill(int(Path(trainer["log"]).stem.rpartition("-")[2]), signal.SIGKILL)
    out, _ = run.communicate(timeout=600)
    assert run.returncode == 1, out
    assert "TrainerDiedError: trainer_0 died" in out
    assert f"what it printed is in {trainer['log']}" in out
    assert "Traceback" not in out
    assert header(tmp_path)["status"] == "failed"
    assert header(tmp_path)["steps_run"] > 0
    assert nobody_is_left(below)


@pytest.mark.prove
def test_a_cluster_that_does_not_answer_is_reported_in_a_line_and_leaves_no_folder(tmp_path, repository):
    (tmp_path / "endless.yaml").write_text(ENDLESS)
    run = subprocess.run(
        [sys.executable, "-m", "proa", "train", "endless.yaml", "--output_dir", "runs", "--ray.address", "127.0.0.1:1"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(repository / "src")}, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 1
    assert "no Ray cluster answers at ray.address=127.0.0.1:1" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "runs" / "endless").exists()


def _alive(pid):
    try:
        with Path(f"/proc/{pid}/stat").open() as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
