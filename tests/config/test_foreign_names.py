"""Names from TRL, transformers, verl and OpenRLHF are answered with what they are called here."""

import re
from dataclasses import fields

import pytest

from proa.algorithms import ALGORITHMS
from proa.config import ConfigError, load_run_config
from proa.config.foreign_names import _NAMES, name_here
from proa.config.reference import sections, settings
from proa.config.supervised_settings import SUPERVISED

PARAMS = {field.name for one in (*ALGORITHMS.values(), *SUPERVISED.values()) for field in fields(one)}
BASE = {"total_steps": 1, "train_batch_size": 8, "model": "m", "task": "sort_digits"}


def test_there_are_many_and_none_is_ours():
    ours = {setting.key for setting in settings()}
    assert len(_NAMES) >= 40
    assert not ours & _NAMES.keys()


@pytest.mark.parametrize("foreign", _NAMES)
def test_each_leads_to_a_setting_that_there_is(foreign):
    known = {setting.key.replace("[]", "") for setting in settings()} | {*sections()}
    named = re.findall(r"[a-z_]+(?:\.[a-z_]+)*", _NAMES[foreign])
    commands = ("proa resume", "--overwrite")
    assert any(name in known for name in named) or any(command in _NAMES[foreign] for command in commands)
    for params in re.findall(r"algorithm\.params: {(.*?)}|or for dpo {(.*?)}", _NAMES[foreign]):
        for name in re.findall(r"(\w+):", "".join(params)):
            assert name in PARAMS, f"{name} is a setting of no algorithm"


@pytest.mark.parametrize("foreign", ["num_generations", "beta", "reward_funcs", "bf16"])
def test_a_file_that_uses_one_is_answered_with_ours(foreign, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(f"total_steps: 1\ntrain_batch_size: 8\nmodel: m\ntask: sort_digits\n{foreign}: 3\n")
    with pytest.raises(
        ConfigError, match=rf"line 5: unknown key '{foreign}': here it is {re.escape(_NAMES[foreign])}$"
    ):
        load_run_config(file)


def test_a_key_without_its_section_is_answered_with_it():
    with pytest.raises(ConfigError, match=r"unknown key 'group_size': here it is sampling\.group_size"):
        load_run_config(None, ["--group_size", "4"], **BASE)
    with pytest.raises(
        ConfigError, match=r"here it is optimizer\.learning_rate or critic\.learning_rate or warm_start"
    ):
        load_run_config(**BASE, learning_rate=1e-5)


def test_a_misspelling_is_still_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'total_steps'"):
        load_run_config(**BASE, total_stepz=3)
    assert name_here("total_stepz") is None
