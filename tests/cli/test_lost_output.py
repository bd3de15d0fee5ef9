"""Whoever read the output is gone, in the middle of a run: the run is not lost with them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.small import MODEL

from proa import CheckpointManager

RUN = """
algorithm: sft
name: run
output_dir: .
total_steps: 6
train_batch_size: 4
model: {config: SMALL_MODEL}
task: {source: sort_digits, count: 16}
checkpoint: {save_every: 0}
callbacks: [{kind: "held:Held"}]
""".replace("SMALL_MODEL", json.dumps(MODEL))

HELD = """
import os, time
from proa import Callback

class Held(Callback):
    '''Says that the run is in its third step, and waits there until it is let go.'''

    def on_step_end(self, state, step_idx, batch, metrics):
        print("a line of the user's own", flush=True)
        if step_idx == 2:
            open("reached", "w").close()
            while not os.path.exists("let_go"):
                time.sleep(0.01)
"""


PIPELINE = f"trap true INT; {sys.executable} -m proa train run.yaml 2>&1 | tee log; echo ${{PIPESTATUS[0]}} > code"


@pytest.mark.prove
def test_ctrl_c_in_a_pipeline_saves_a_checkpoint_though_it_ends_the_reader_too(tmp_path):
    """As a terminal does it: the signal goes to the whole group, so `tee` is gone before the run says anything."""
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "held.py").write_text(HELD)
    shell = subprocess.Popen(["bash", "-c", PIPELINE], cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)
    while not (tmp_path / "reached").exists():
        assert shell.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.01)
    os.killpg(shell.pid, signal.SIGINT)
    (tmp_path / "let_go").touch()
    shell.wait(120)
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (header["status"], header["stop_reason"]) == ("cancelled", "interrupted")
    assert [row.step for row in CheckpointManager(tmp_path / "run").rows] == [3]
    assert (tmp_path / "code").read_text() == "130\n"
