"""Whoever read the output is gone, in the middle of a run: the run is not lost with them."""

import json
import os
import signal
import subprocess
import sys

from proa import CheckpointManager

RUN = """
algorithm: sft
name: run
output_dir: .
total_steps: 6
train_batch_size: 4
model: {config: {model_type: llama, vocab_size: 16, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1,
                 num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 24}}
task: {source: sort_digits, count: 16}
checkpoint: {save_every: 0}
callbacks: [{kind: "held:Held"}]
"""

HELD = """
import os
from proa import Callback

class Held(Callback):
    '''Says that the run is in its third step, and waits there until it is let go.'''

    def on_step_end(self, state, step_idx, batch, metrics):
        print("a line of the user's own", flush=True)
        if step_idx == 2:
            open("reached", "w").close()
            open("let_go").read()  # a named pipe: opening it waits for the other end
"""


PIPELINE = f"trap true INT; {sys.executable} -m proa train run.yaml 2>&1 | tee log; echo ${{PIPESTATUS[0]}} > code"


def test_ctrl_c_in_a_pipeline_saves_a_checkpoint_though_it_ends_the_reader_too(tmp_path):
    """As a terminal does it: the signal goes to the whole group, so `tee` is gone before the run says anything."""
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "held.py").write_text(HELD)
    os.mkfifo(tmp_path / "reached")
    os.mkfifo(tmp_path / "let_go")
    shell = subprocess.Popen(["bash", "-c", PIPELINE], cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)
    (tmp_path / "reached").read_text()
    os.killpg(shell.pid, signal.SIGINT)
    (tmp_path / "let_go").write_text("")
    shell.wait(60)
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (header["status"], header["stop_reason"]) == ("cancelled", "interrupted")
    assert [row.step for row in CheckpointManager(tmp_path / "run").rows] == [3]
    assert (tmp_path / "code").read_text() == "130\n"
