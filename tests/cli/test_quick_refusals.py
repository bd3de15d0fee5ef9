"""The likeliest slips are refused before torch or transformers is loaded, which takes seconds."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from tests.small import DETACHED

from proa.config import load_run_config

REFUSED = {
    "train missing.yaml": "the configuration missing.yaml cannot be read",
    "train run.yaml --total_stepz 3": "unknown key 'total_stepz'; did you mean 'total_steps'?",
    "train run.yaml --num_generations 4": "here it is sampling.group_size",
    "train run.yaml --makers many": "makers must be a whole number, not 'many'",
    "train run.yaml --optimizer.schedule linaer": "did you mean 'linear'?",
    "train run.yaml --name used": "used was already used by a run",
    "train run.yaml --task rows.jsonl": "there is no file 'rows.jsonl'",
    "train run.yaml --task torn.jsonl --model.tokenizer .": "torn.jsonl, line 2: not JSON",
    "train run.yaml --task other.csv --model.tokenizer .": "name yours under task, e.g. columns: {prompt: question}",
    "train sft.yaml --task other.csv --model.tokenizer .": "other.csv has no columns that are known",
    "train sft.yaml --task other.csv --model.tokenizer . --algorithm dpo": "row 0 has no column 'chosen'",
    "train run.yaml --task right.jsonl": "a model made from configuration has no tokenizer: give model.tokenizer",
    "train run.yaml --reward mine.py:exact": "'mine.py:exact' names a file: write its module, 'mine:exact'",
    "train run.yaml --reward mine.py": "'mine.py' names a file: write its module, 'mine:name'",
    "train run.yaml --algorithm GRPO": "no algorithm 'GRPO'; did you mean 'grpo'?",
    'train run.yaml --eval [{"name":"x","source":"no.jsonl"}]': "there is no file 'no.jsonl'",
    "train run.yaml --output_dir run.yaml/runs": "cannot be used: not a directory",
    "train empty.yaml": "empty is not a model folder: it has no config.json",
    "train mute.yaml": "there is no tokenizer in mute: name one as model.tokenizer, a folder or a name of the Hub",
    "train run.yaml --reward right_rewards:exat": "right_rewards has no 'exat'; did you mean 'exact'?",
    "train run.yaml --model.tokenizer no/where": "the Hub is not asked, for HF_HUB_OFFLINE is set",
    "train run.yaml --model no/where": "its cache on this machine does not have the model no/where",
    'train run.yaml --task right.jsonl --model.tokenizer . --eval [{"name":"x"}]': "eval x has no data of its own",
    "train run.yaml --engine vlm": "no engine 'vlm'; did you mean 'vllm'?",
    "train run.yaml --engine vllm --engine.options.block_siz 32": "vLLM has no argument 'block_siz'; did you mean",
    "train run.yaml --engine vllm --engine.options.dtype half": "'dtype' is not yours to set: write engine.dtype",
    "train run.yaml --engine.options.block_size 32": "options are vLLM's own arguments, and engine.kind is native",
    "train run.yaml --model nowhere": "no model folder nowhere",
    "train run.yaml --algorithm.params.beta 0.1": "here it is algorithm.params: {kl_coefficient: …}",
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
    "resume complete --sampling.temperature 0.5": "sampling.temperature was 1.0 and is 0.5",
    "replay nowhere": "nowhere does not exist",
    "show nowhere": "nowhere does not exist",
    "report nowhere": "nowhere does not exist",
    "config nowhere": "there is no setting or section 'nowhere'",
    "config --template gropo": "did you mean 'grpo'?",
    "config num_generations": "'num_generations': here it is sampling.group_size",
}
SFT = {"algorithm": "sft", "model": DETACHED["model"], "task": "sort_digits", "train_batch_size": 4, "total_steps": 1}
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


IN_PYTHON = {
    "grpo('run.yaml', total_stepz=3)": "unknown key 'total_stepz'; did you mean 'total_steps'?",
    "grpo('run.yaml', num_generations=4)": "here it is sampling.group_size",
    "dpo('run.yaml', algorithm='grpo')": "the recipe dpo was given a configuration for algorithm grpo",
    "grpo('run.yaml', name='used', reward=print)": "used was already used by a run",
    "grpo('run.yaml', task=None)": "task is None: give data, a file or a name",
    "grpo('run.yaml', task=[{'question': '1>'}], tokenizer=print)": "e.g. columns: {prompt: question}",
    "dpo(**{**ROWS, 'model': {'config': {}}}, tokenizer=print)": "row 0 has no column 'chosen'",
    "grpo('run.yaml', model='nowhere', task=[{'prompt': '1>'}])": "no model folder nowhere",
    "sft(**ROWS, overwrite_=True)": "did you mean 'overwrite'?",
    "grpo('run.yaml', eval=[{'name': 'x', 'metric': 'no_module:f'}], environment=print)": "no module 'no_module'",
}
CALL_ALL = """
import contextlib, io, json, sys
from proa.errors import ProaError
from proa.recipes import dpo, grpo, sft
ROWS = {"model": "m", "task": [{"prompt": "1>", "answer": "1"}], "total_steps": 1, "train_batch_size": 1}
found = {}
for call in json.loads(sys.argv[1]):
    said = ""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            eval(call)
        except ProaError as error:
            said = str(error)
    found[call] = [printed.getvalue(), said, sorted({"torch", "transformers"} & sys.modules.keys())]
print(json.dumps(found))
"""
FIRST_LINE = """
import builtins, sys
from proa.recipes import grpo
class NotNow(BaseException): pass
def load(name, *arguments, **more):
    if name == "torch":
        raise NotNow
    return real(name, *arguments, **more)
real, builtins.__import__ = builtins.__import__, load
try:
    grpo("run.yaml", reward=print, task=[{"prompt": "1>"}])
except NotNow:
    print("torch comes next")
"""


def in_folder(folder, *arguments):
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", *arguments], cwd=folder, env=offline, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    (folder / "run.yaml").write_text(yaml.safe_dump({**DETACHED, "total_steps": 1, "output_dir": "."}))
    arm = {**DETACHED, "total_steps": 1, "sampling": {"group_sice": 4}}
    (folder / "arms.yaml").write_text(yaml.safe_dump({"name": "arms", "runs": {"one": arm}}))
    (folder / "sft.yaml").write_text(yaml.safe_dump(SFT))
    (folder / "empty.yaml").write_text(yaml.safe_dump({**DETACHED, "total_steps": 1, "model": "empty"}))
    (folder / "torn.jsonl").write_text('{"prompt": "1>", "answer": "1"}\n{"prompt": \n')
    (folder / "right.jsonl").write_text('{"prompt": "1>", "answer": "1"}\n')
    (folder / "right_rewards.py").write_text("import torch\n\n\ndef exact(completions):\n    return completions\n")
    (folder / "other.csv").write_text("question,solution\n1>,1\n")
    (folder / "mute.yaml").write_text(yaml.safe_dump({**DETACHED, "total_steps": 1, "model": "mute"}))
    (folder / "mute").mkdir()
    (folder / "mute" / "config.json").write_text('{"model_type": "llama"}')
    (folder / "empty").mkdir()
    (folder / "vllm" / "engine").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("import torch")
    (folder / "vllm" / "engine" / "arg_utils.py").write_text(
        "import torch\nclass EngineArgs:\n    block_size: int = 1\n"
    )
    (folder / "used").mkdir()
    (folder / "used" / "run.json").write_text("{}")
    (folder / "complete").mkdir()
    complete = load_run_config(folder / "run.yaml", name="complete").model_dump(mode="json")
    (folder / "complete" / "config.json").write_text(json.dumps(complete))
    (folder / "complete" / "run.json").write_text('{"format": 1, "status": "completed"}')
    return folder


@pytest.fixture(scope="module")
def found(folder):
    """Of each command its exit code, what it said, and what was loaded by then: all in one process."""
    return json.loads(in_folder(folder, RUN_ALL, json.dumps(list(REFUSED))))


@pytest.fixture(scope="module")
def found_in_python(folder):
    """Of each call what was printed, the error, and what was loaded by then."""
    return json.loads(in_folder(folder, CALL_ALL, json.dumps(list(IN_PYTHON))))


@pytest.mark.parametrize("line", REFUSED)
def test_a_slip_is_refused_before_torch_is_loaded(line, found):
    code, said, loaded = found[line]
    assert REFUSED[line] in said
    assert (code, loaded) == (2, [])


@pytest.mark.parametrize("call", IN_PYTHON)
def test_python_is_refused_before_torch_is_loaded(call, found_in_python):
    printed, said, loaded = found_in_python[call]
    assert IN_PYTHON[call] in said
    assert (printed, loaded) == ("", [])


def test_the_first_line_is_there_before_torch_in_python_too(folder):
    first, *rest = in_folder(folder, FIRST_LINE).splitlines()
    assert first.endswith("grpo on cpu in float32")
    assert rest == ["loading torch, the model and the data", "torch comes next"]
