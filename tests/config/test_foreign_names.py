"""Names from TRL, transformers, verl and OpenRLHF are answered with what they are called here."""

import re
from dataclasses import fields

import pytest

from proa.algorithms import ALGORITHMS
from proa.config import ConfigError, load_run_config
from proa.config.foreign_names import _NAMES, _NEEDLESS, name_here
from proa.config.reference import sections, settings
from proa.config.supervised_settings import SUPERVISED

PARAMS = {field.name for one in (*ALGORITHMS.values(), *SUPERVISED.values()) for field in fields(one)}
BASE = {"total_steps": 1, "train_batch_size": 8, "model": "m", "task": "sort_digits"}


def test_there_are_many_and_none_is_ours():
    ours = {setting.key for setting in settings()}
    assert len(_NAMES) >= 40
    assert not ours & (_NAMES.keys() | _NEEDLESS.keys())
    assert not _NAMES.keys() & _NEEDLESS.keys()


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
    with pytest.raises(ConfigError, match=r"unknown key 'learning_rate': here it is optimizer\.learning_rate$"):
        load_run_config(**BASE, learning_rate=1e-5)
    with pytest.raises(ConfigError, match=r"unknown key 'clip_high': here it is algorithm\.params: {clip_high: …}"):
        load_run_config(**BASE, clip_high=0.3)
    with pytest.raises(ConfigError, match=r"unknown key 'batch_size': here it is train_batch_size"):
        load_run_config(**BASE, batch_size=8)


def test_the_sections_of_verl_are_answered_key_by_key():
    of_verl = {"rollout": {"n": 8, "temperature": 0.9, "mode": "async"}, "actor": {"optim": {"lr": 1e-6}}}
    with pytest.raises(ConfigError) as refused:
        load_run_config(**BASE, actor_rollout_ref=of_verl)
    assert str(refused.value) == (
        "unknown key 'actor_rollout_ref': it has actor_rollout_ref.rollout.n: here it is sampling.group_size; "
        "actor_rollout_ref.rollout.temperature: here it is sampling.temperature; "
        "actor_rollout_ref.actor.optim.lr: here it is optimizer.learning_rate"
    )
    with pytest.raises(ConfigError, match=r"trainer\.save_freq: here it is checkpoint\.save_every$"):
        load_run_config(None, ["--trainer.save_freq", "20"], **BASE)


def test_what_is_needless_here_is_said():
    with pytest.raises(ConfigError, match=r"unknown key 'ref_model': it is not needed: the reference is the model"):
        load_run_config(**BASE, algorithm="dpo", ref_model="m")


def test_unknown_keys_come_before_missing_ones():
    with pytest.raises(ConfigError) as refused:
        load_run_config(model="m", train_dataset="rows.jsonl")
    assert str(refused.value).splitlines()[0] == "unknown key 'train_dataset': here it is task"


def test_a_setting_that_the_algorithm_does_not_have_is_answered_with_ours():
    said = r"has no setting .beta. \(it has: .*\); what others call beta: here it is algorithm\.params: {kl_coefficient"
    with pytest.raises(ConfigError, match=said):
        load_run_config(**BASE, algorithm={"name": "grpo", "params": {"beta": 0.04}})


def test_a_misspelling_is_still_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'total_steps'"):
        load_run_config(**BASE, total_stepz=3)
    assert name_here("total_stepz") is None
