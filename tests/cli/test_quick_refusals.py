"""The likeliest slips are refused before torch or transformers is loaded, which takes seconds."""

import json
import subprocess
import sys

import pytest
import yaml
from tests.small import DETACHED

REFUSED = {
    "train missing.yaml": "the configuration missing.yaml cannot be read",
    "train run.yaml --total_stepz 3": "unknown key 'total_stepz'; did you mean 'total_steps'?",
    "train run.yaml --num_generations 4": "here it is sampling.group_size",
    "train run.yaml --makers many": "makers must be a whole number, not 'many'",
    "train run.yaml --optimizer.schedule linaer": "did you mean 'linear'?",
    "train run.yaml --name used": "used was already used by a run",
    "train run.yaml --task rows.jsonl": "there is no file 'rows.jsonl'",
    "train run.yaml --model nowhere": "no model folder nowhere",
    "train run.yaml --algorithm.params.beta 0.1": "is here algorithm.params: {kl_coefficient: …}",
    "train run.yaml --algorithm.params.clip_hi 0.1": "did you mean 'clip_high'?",
    "train run.yaml --sampling.group_size 1": "sampling.group_size must be at least 2",
    "train run.yaml --algorithm gropo": "no algorithm 'gropo'; did you mean 'grpo'?",
    "train run.yaml --callbacks wandbb": "no callback kind 'wandbb'; did you mean 'wandb'?",
    "train run.yaml --reward no_module:exact": "no module 'no_module' on Python's search path",
    "train run.yaml --train_batch_size 3": "a batch holds whole groups",
    "train run.yaml --runtime slurm": "runtime must be local or ray, not 'slurm'",
    "train arms.yaml": "arms.yaml is an experiment: proa experiment arms.yaml",
    "experiment missing.yaml": "the configuration missing.yaml cannot be read",
    "experiment arms.yaml": "unknown key 'sampling.group_sice'; did you mean 'group_size'?",
    "eval nowhere": "there is no folder nowhere",
    "resume nowhere": "nowhere is not a run's folder",
    "replay nowhere": "nowhere does not exist",
    "show nowhere": "nowhere does not exist",
    "report nowhere": "nowhere does not exist",
    "config nowhere": "there is no setting or section 'nowhere'",
    "config --template gropo": "did you mean 'grpo'?",
}
RUN_ALL = """
import contextlib, io, json, sys
from proa.cli.main import main
found = {}
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        code = main(line.split())
    found[line] = [code, said.getvalue(), sorted({"torch", "transformers"} & sys.modules.keys())]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Of each command its exit code, what it said, and what was loaded by then: all in one process."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "run.yaml").write_text(yaml.safe_dump({**DETACHED, "total_steps": 1, "output_dir": "."}))
    arm = {**DETACHED, "total_steps": 1, "sampling": {"group_sice": 4}}
    (folder / "arms.yaml").write_text(yaml.safe_dump({"name": "arms", "runs": {"one": arm}}))
    (folder / "used").mkdir()
    (folder / "used" / "run.json").write_text("{}")
    command = [sys.executable, "-c", RUN_ALL, json.dumps(list(REFUSED))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("line", REFUSED)
def test_a_slip_is_refused_before_torch_is_loaded(line, found):
    code, said, loaded = found[line]
    assert REFUSED[line] in said
    assert (code, loaded) == (2, [])
