"""Without a name a run takes the next free one, and says which run of the same configuration is unfinished."""

import json

import pytest
import yaml
from tests.small import DETACHED, MODEL_WITH_END

from proa import Callback
from proa.cli.main import main
from proa.config import RunConfig
from proa.data.state import TrainState
from proa.recipes import grpo, sft
from proa.run.naming import base_name
from proa.tasks.builtin.characters import tokenizer

SETTINGS = {"model": {"config": MODEL_WITH_END}, "task": "sort_digits", "train_batch_size": 4, "total_steps": 2}


class Fails(Callback):
    def on_step_end(self, state, step_idx, batch, metrics):
        raise ZeroDivisionError


def folders(place):
    return sorted(path.name for path in place.iterdir())


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("sort_digits", "grpo-sort_digits"),
        ("data/sums.jsonl", "grpo-sums"),
        ("reasoning_gym:chain_sum?size=20&seed=1", "grpo-chain_sum"),
        ("my_package.tasks:sums", "grpo-sums"),
        ("(given in Python)", "grpo"),
    ],
)
def test_the_name_is_algorithm_and_task(task, name):
    assert base_name(RunConfig(**DETACHED | {"task": task})) == name


def test_an_algorithm_of_ones_own_is_named_by_its_class():
    settings = DETACHED | {"algorithm": "proa.algorithms.grpo:GRPO"}
    assert base_name(RunConfig(**settings)) == "GRPO-sort_digits"


def test_each_run_has_a_folder_of_its_own_and_returns_it(tmp_path):
    states = [sft(**SETTINGS, output_dir=tmp_path) for _ in range(3)]
    assert folders(tmp_path) == ["sft-sort_digits", "sft-sort_digits-2", "sft-sort_digits-3"]
    assert isinstance(states[1], TrainState)
    assert states[1].run_dir == tmp_path / "sft-sort_digits-2"
    assert (states[1].model_dir / "config.json").is_file()
    assert states[1].metrics["loss"] > 0
    assert json.loads((tmp_path / "sft-sort_digits-2/config.json").read_text())["name"] == "sft-sort_digits-2"


def test_an_unfinished_run_of_the_same_configuration_is_named(tmp_path, caplog):
    settings = SETTINGS | {"checkpoint": {"save_every": 1}, "output_dir": tmp_path}
    with pytest.raises(ZeroDivisionError):
        sft(**settings, callbacks=[Fails()])
    sft(**settings | {"seed": 1})
    assert "unfinished" not in caplog.text  # that is another one
    sft(**settings)
    assert f"{tmp_path / 'sft-sort_digits'} is an unfinished run of the same configuration" in caplog.text
    assert f"proa resume {tmp_path / 'sft-sort_digits'} continues it" in caplog.text


def test_what_was_given_in_python_is_resumed_there(tmp_path, caplog):
    rows = [{"prompt": f"{n}", "answer": "1"} for n in range(8)]
    settings = DETACHED | {"task": rows, "reward": {"functions": [one], "workers": 0}, "output_dir": tmp_path}
    settings |= {"tokenizer": tokenizer()}
    with pytest.raises(ZeroDivisionError):
        grpo(**settings, callbacks=[Fails()])
    grpo(**settings)
    assert "the same call with resume=\"auto\", name='grpo' continues it" in caplog.text


def one(completions, **columns):
    return [float(len(text)) for text in completions]


def test_resuming_finds_the_last_run_of_the_same_configuration(tmp_path):
    sft(**SETTINGS, output_dir=tmp_path)
    sft(**SETTINGS | {"seed": 1}, output_dir=tmp_path)
    assert sft(**SETTINGS, output_dir=tmp_path, resume="auto").run_dir == tmp_path / "sft-sort_digits"
    other = sft(**SETTINGS | {"seed": 2}, output_dir=tmp_path, resume="auto")
    assert (other.run_dir, other.resumed_from) == (tmp_path / "sft-sort_digits-3", None)


def test_overwriting_replaces_the_first(tmp_path):
    sft(**SETTINGS, output_dir=tmp_path)
    sft(**SETTINGS, output_dir=tmp_path, overwrite=True)
    assert folders(tmp_path) == ["sft-sort_digits"]


def test_a_used_folder_is_refused_before_anything_large_is_loaded(tmp_path, capsys, monkeypatch):
    content = {**SETTINGS, "algorithm": "sft", "name": "mine", "output_dir": str(tmp_path)}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/run.json").write_text("{}")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr("proa.config.load_run_config", None)  # whatever is called next
    assert main(["train", str(tmp_path / "run.yaml")]) == 2
    shown = capsys.readouterr()
    assert "was already used by a run" in shown.err
    assert shown.out == ""
