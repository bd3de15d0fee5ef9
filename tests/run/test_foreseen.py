"""The first line of a run: the device is in it, before torch is loaded and whether or not that was foreseen."""

import importlib.util
import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest
import yaml
from tests.small import DETACHED

from proa import RunConfig
from proa.algorithms import ALGORITHMS, build_algorithm, find_algorithm
from proa.config import outline_run_config
from proa.config.algorithm_outlines import OUTLINES
from proa.errors import ProaError
from proa.recipes import grpo
from proa.run import foreseen
from proa.run.foreseen import announce, check_there, may_have_gpu
from proa.run.given import Given
from proa.run.start import start_configured

CPU_BUILD = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA_BUILD = "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"


def config(tmp_path, **changes):
    return RunConfig(**{**DETACHED, "name": "run", "output_dir": str(tmp_path), "total_steps": 1} | changes)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with this build of torch, with or without a driver."""

    def install(build, driver=True):
        (tmp_path / "torch").mkdir(exist_ok=True)
        (tmp_path / "torch" / "version.py").write_text(build)
        (tmp_path / "driver").touch()
        found = SimpleNamespace(origin=str(tmp_path / "torch" / "__init__.py"))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
        monkeypatch.setattr(foreseen, "_DRIVERS", (str(tmp_path / ("driver" if driver else "none")),))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return install


def test_a_gpu_is_foreseen_where_torch_is_built_for_it_and_its_driver_is_there(machine, monkeypatch):
    machine(CUDA_BUILD)
    assert may_have_gpu()
    machine(CPU_BUILD)
    assert not may_have_gpu()
    machine(CUDA_BUILD, driver=False)
    assert not may_have_gpu()
    machine(CUDA_BUILD)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not may_have_gpu()


def test_the_first_line_says_the_device_and_the_dtype_that_auto_will_be(tmp_path, machine, capsys):
    run = config(tmp_path, model={"config": DETACHED["model"]["config"]})
    machine(CUDA_BUILD)
    assert announce(run) == f"{tmp_path / 'run'}: grpo on cuda in bfloat16"
    machine(CPU_BUILD)
    announce(run)
    assert f"{tmp_path / 'run'}: grpo on cpu in float32\nloading torch" in capsys.readouterr().out


def test_a_device_that_was_asked_for_is_not_guessed(tmp_path, machine):
    machine(CPU_BUILD)
    asked = config(tmp_path, model={**DETACHED["model"], "device": "cuda:1", "dtype": "float32"})
    assert announce(asked) == f"{tmp_path / 'run'}: grpo on cuda:1 in float32"


def test_a_first_line_is_repeated_only_if_it_was_not_true(tmp_path, capsys):
    start_configured(config(tmp_path / "true"), Given(), announced=announce(config(tmp_path / "true")))
    assert capsys.readouterr().out.count("grpo on") == 1
    announced = f"{tmp_path / 'false' / 'run'}: grpo on cuda in bfloat16"
    start_configured(config(tmp_path / "false"), Given(), announced=announced)
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'false' / 'run'}: grpo on cpu in float32\n")


def test_from_python_the_first_line_comes_before_the_data_is_read(tmp_path, capsys):
    missing = {**DETACHED, "output_dir": str(tmp_path), "name": "run", "task": "missing.jsonl", "epochs": 1}
    del missing["total_steps"]
    with pytest.raises(ValueError, match="missing.jsonl"):
        grpo(**missing)
    assert capsys.readouterr().out == f"{tmp_path / 'run'}: grpo on cpu in float32\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": "missing.jsonl"}, "there is no file 'missing.jsonl'"),
        ({"task": "sort_digit"}, "unknown task 'sort_digit'; did you mean 'sort_digits'"),
        ({"task": "mine/missing"}, "a dataset of the Hub is written hf:mine/missing"),
        ({"model": "missing"}, "no model folder missing: give the path of a Hugging Face folder"),
        ({"callbacks": [{"kind": "wandbb"}]}, "no callback kind 'wandbb'; did you mean 'wandb'"),
        ({"callbacks": [{"kind": "no_module:Mine"}]}, "callback kind 'no_module:Mine': no module 'no_module'"),
        ({"reward": {"functions": ["exact"]}}, "reward 'exact' is not a dotted path: write 'package.module:name'"),
        ({"reward": {"functions": ["no_module:exact"]}}, "reward 'no_module:exact': no module 'no_module' on Python's"),
        ({"tools": ["no_module.inner:search"]}, "tool 'no_module.inner:search': no module 'no_module'"),
        ({"agent": "no_module:solve"}, "agent 'no_module:solve': no module 'no_module'"),
        ({"environment": {"path": "no_module:World"}}, "environment 'no_module:World': no module 'no_module'"),
        ({"eval": [{"name": "e", "metric": "no_module:exact"}]}, "eval e: metric 'no_module:exact': no module"),
    ],
)
def test_what_is_not_there_is_refused_before_torch_is_loaded(tmp_path, changes, said):
    with pytest.raises(ProaError, match=said):
        check_there(config(tmp_path, **changes))


@pytest.mark.parametrize("source", ["hf:mine/data", "reasoning_gym:chain_sum?size=9", "my_module:rows", "add_digits"])
def test_what_only_loading_can_tell_is_left_to_it(tmp_path, source):
    check_there(config(tmp_path, task=source, model="Qwen/Qwen3-0.6B"))


@pytest.mark.parametrize(
    ("name", "said"), [("gropo", "did you mean 'grpo'"), ("no_module:Mine", "no module 'no_module'")]
)
def test_an_algorithm_that_is_not_there_is_refused_before_torch_is_loaded(tmp_path, name, said):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**DETACHED, "total_steps": 1, "algorithm": name}))
    with pytest.raises(ProaError, match=said):
        check_there(outline_run_config(file))


def test_a_gpu_that_is_not_there_is_refused_before_torch_is_loaded(tmp_path, monkeypatch):
    asks = config(tmp_path, model={**DETACHED["model"], "device": "cuda:9"})
    monkeypatch.setattr(foreseen, "may_have_gpu", lambda: True)
    check_there(asks)  # how many there are only torch knows
    monkeypatch.setattr(foreseen, "may_have_gpu", lambda: False)
    with pytest.raises(ProaError, match="model.device is cuda:9, and there is no GPU here that torch can use"):
        check_there(asks)


def test_what_is_known_of_algorithms_without_importing_them_is_true():
    assert set(OUTLINES) == set(ALGORITHMS)
    for name, outline in OUTLINES.items():
        assert dict(outline.settings) == {one.name: one.default for one in fields(find_algorithm(name)) if one.init}, (
            name
        )
        assert outline.min_group == build_algorithm(name).min_group, name


def test_the_first_line_needs_neither_torch_nor_transformers():
    source = "import sys, proa.run.foreseen; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True).stdout == "set()\n"
