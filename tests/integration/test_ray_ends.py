"""How a run on Ray ends when the driver is told to: within its time, with the right code, and nobody left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

ENDLESS = """\
name: endless
runtime: ray
total_steps: 100000
train_batch_size: 8
makers: 1
sampling: {group_size: 2, max_new_tokens: 7}
model:
  config: {model_type: llama, vocab_size: 16, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1,
           num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 24}
task: {source: sort_digits, count: 64}
reward: {workers: 0}
"""


def children_of(pid):
    """Everyone below a process."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout
    parents = dict(map(int, line.split()) for line in listed.splitlines()[1:])
    found, level = set(), {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_the_run_with_130_and_no_process_is_left(tmp_path, repository, number):
    (tmp_path / "endless.yaml").write_text(ENDLESS)
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    run = subprocess.Popen(
        [sys.executable, "-m", "proa", "train", "endless.yaml", "--output_dir", "runs"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    metrics = tmp_path / "runs" / "endless" / "metrics.jsonl"
    until = time.monotonic() + 120
    while time.monotonic() < until and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.2)
    below = children_of(run.pid)
    run.send_signal(number)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 130, out
    header = json.loads((tmp_path / "runs" / "endless" / "run.json").read_text())
    assert (header["status"], header["stop_reason"]) == ("cancelled", "interrupted")
    until = time.monotonic() + 20
    while time.monotonic() < until and any(_alive(pid) for pid in below):
        time.sleep(0.2)
    assert not [pid for pid in below if _alive(pid)]


def _alive(pid):
    try:
        with Path(f"/proc/{pid}/stat").open() as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
