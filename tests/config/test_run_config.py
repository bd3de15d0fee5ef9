"""One name, two kinds of run: a configuration is of the kind that its algorithm belongs to."""

import json
import math
import pickle
import subprocess
import sys

import pytest
from pydantic import ValidationError
from tests.small import DETACHED, MODEL

from proa import RunConfig
from proa.config import (
    ConfigError,
    DetachedConfig,
    SupervisedConfig,
    arm_config,
    change_run_config,
    load_experiment_config,
    load_run_config,
    restore_run_config,
)
from proa.config.sections import DTYPES
from proa.policy.models import _DTYPES
from proa.record.run_folder import json_text

SUPERVISED = {
    "total_steps": 4, "train_batch_size": 4, "model": {"config": MODEL}, "task": "sort_digits", "algorithm": "sft",
}  # fmt: skip
KINDS = [(DETACHED, DetachedConfig), ({**DETACHED, "algorithm": "ppo"}, DetachedConfig), (SUPERVISED, SupervisedConfig)]


@pytest.mark.parametrize(("settings", "kind"), KINDS)
def test_every_way_to_a_configuration_gives_its_kind(settings, kind):
    made = RunConfig(**settings)
    assert isinstance(made, RunConfig)
    written = made.model_dump(mode="json")
    others = [
        RunConfig.model_validate(settings), RunConfig.model_validate(written), RunConfig(**written),
        RunConfig.model_validate_json(json.dumps(written)), RunConfig.model_validate(made), kind(**settings),
        load_run_config(**settings), restore_run_config(written), change_run_config(made),
        pickle.loads(pickle.dumps(made)), made.model_copy(),
    ]  # fmt: skip
    assert {type(one) for one in others} == {type(made)} == {kind}
    assert all(one == made for one in others)


def test_a_kind_takes_its_own_algorithms_alone():
    with pytest.raises(ValidationError, match="'sft', 'dpo' or 'reward_model'"):
        SupervisedConfig(**SUPERVISED | {"algorithm": "grpo"})
    with pytest.raises(ValidationError, match="no algorithm 'sft'"):
        DetachedConfig(**DETACHED, algorithm="sft")


def test_another_algorithm_may_make_it_another_kind():
    settings = {key: SUPERVISED[key] for key in SUPERVISED if key != "algorithm"}
    nothing_said = RunConfig(**settings | {"train_batch_size": 8})
    assert isinstance(nothing_said, DetachedConfig)
    assert isinstance(change_run_config(nothing_said, recipe="sft"), SupervisedConfig)
    with pytest.raises(ConfigError, match="the recipe sft was given a configuration for algorithm grpo: use that"):
        change_run_config(RunConfig(**DETACHED, algorithm="grpo"), recipe="sft")


# Keys of the other kind.


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("makers", 2), ("runtime", "ray"), ("trainers", 2), ("max_staleness", 0), ("schedule", "windowed"),
        ("update_steps", 2), ("buffer_limit", 1), ("lease_prompts", 1), ("lease_timeout", 1.0), ("wait_timeout", 5.0),
        ("reward", {"workers": 0}), ("critic", "separate"), ("warm_start", {"steps": 1}), ("ray", {"min_makers": 2}),
        ("optimizer.share_prompts", True), ("algorithm.old", "trainer"), ("algorithm.importance_cap", 3.0),
        ("sampling.group_size", 4), ("sampling.temperature", 0.5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("algorithm", ["sft", "dpo", "reward_model"])
def test_a_key_that_a_supervised_run_does_not_have_is_refused(algorithm, key, value):
    settings = SUPERVISED | {"algorithm": algorithm}
    with pytest.raises(ConfigError) as refused:
        load_run_config(**settings, **{key: value})
    assert str(refused.value) == f"{key} does not apply to algorithm {algorithm}: leave it out"
    if "." not in key:
        with pytest.raises(ValidationError, match=f"{key} does not apply to algorithm {algorithm}"):
            RunConfig(**settings, **{key: value})


def test_its_line_is_told_and_a_misspelling_gets_a_suggestion_of_what_there_is(tmp_path):
    file = tmp_path / "run.yaml"
    text = "total_steps: 4\ntrain_batch_size: 4\nmodel: m\ntask: sort_digits\nalgorithm: sft\noptimizer:\n"
    file.write_text(f"{text}  share_prompts: true\n")
    with pytest.raises(ConfigError, match=r"run\.yaml, line 7: optimizer\.share_prompts does not apply to algorithm"):
        load_run_config(file)
    file.write_text(f"{text}  share_promptz: true\n")
    with pytest.raises(ConfigError, match=r"line 7: unknown key 'optimizer\.share_promptz' \(known: learning_rate"):
        load_run_config(file)
    file.write_text(f"{text}  token_bugdet: 3\n")
    with pytest.raises(ConfigError, match=r"line 7: unknown key .*; did you mean 'token_budget'\?"):
        load_run_config(file)


def test_at_its_default_it_says_nothing_and_is_left_out():
    shared = {
        "makers": 1,
        "runtime": "local",
        "critic": None,
        "wait_timeout": 600,
        "optimizer": {"share_prompts": "auto"},
    }
    assert load_run_config(**SUPERVISED, **shared) == load_run_config(**SUPERVISED)


def test_all_keys_that_an_older_version_wrote_for_a_supervised_run_are_restored():
    before = RunConfig(**DETACHED).model_dump(mode="json")
    before |= {"algorithm": {"name": "sft", "params": {}, "old": "sampler", "importance_cap": 2.0}}
    assert before["sampling"]["group_size"] == 2  # which nobody read
    restored = restore_run_config(before)
    assert isinstance(restored, SupervisedConfig)
    assert restored.sampling.model_dump() == {"max_new_tokens": 7, "stop": []}
    with pytest.raises(ConfigError, match="makers does not apply to algorithm sft"):
        restore_run_config(before, ["--makers", "2"])


def test_arms_of_an_experiment_may_be_of_either_kind():
    shared = SUPERVISED | {"makers": 1, "sampling": {"max_new_tokens": 4}, "train_batch_size": 8}
    config = load_experiment_config(None, matrix={"run": shared, "over": {"algorithm": ["sft", "grpo"]}})
    assert [type(arm_config(config, arm)) for arm in config.arms] == [SupervisedConfig, DetachedConfig]


def test_a_setting_that_json_has_no_number_for_is_restored():
    unclipped = {"name": "grpo", "params": {"clip_high": math.inf}}
    written = RunConfig(**DETACHED, algorithm=unclipped).model_dump(mode="json")
    read = json.loads(json_text(written))
    assert read["algorithm"]["params"] == {"clip_high": "Infinity"}
    assert restore_run_config(read).algorithm.build().clip_high == math.inf


# Settings of supervised algorithms; those of the others are in tests/algorithms/test_own_algorithm.py.


def test_a_wrong_setting_of_a_supervised_algorithm_has_its_line(tmp_path):
    file = tmp_path / "run.yaml"
    text = "total_steps: 4\ntrain_batch_size: 4\nmodel: m\ntask: x.jsonl\nalgorithm:\n  name: dpo\n  params:\n"
    for setting, words in {
        "bteta: 0.1": "line 8: algorithm 'dpo' has no setting 'bteta'; did you mean 'beta'",
        "beta: 1e-1": "line 8: algorithm.params.beta must be a number, more than 0, not '1e-1'",
        "{loss: ipo, label_smoothing: 0.1}": "line 7: label_smoothing is for the sigmoid loss",
    }.items():
        file.write_text(f"{text}    {setting}\n")
        with pytest.raises(ConfigError, match=words):
            load_run_config(file)


# What is loaded for it.

LOADED = """
import sys
from proa.config import ConfigError, load_run_config
try:
    load_run_config(sys.argv[1], sys.argv[2:])
except ConfigError as error:
    print(error)
print("torch" in sys.modules, "transformers" in sys.modules)
"""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--total_stepz", "3"], "did you mean 'total_steps'"),
        (["--train_batch_size", "7"], "is not a multiple of"),
        (["--algorithm", "sft", "--algorithm.params.packng", "true"], "did you mean 'packing'"),
    ],
)
def test_mistakes_are_found_without_torch(tmp_path, flags, words):
    (tmp_path / "run.yaml").write_text("total_steps: 4\ntrain_batch_size: 8\nmodel: m\ntask: sort_digits\n")
    command = [sys.executable, "-c", LOADED, str(tmp_path / "run.yaml"), *flags]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert words in said[0]
    assert said[-1] == "False False"


def test_a_wrong_setting_of_an_algorithm_is_found_before_anything_else_of_the_run_is_imported(tmp_path):
    (tmp_path / "run.yaml").write_text("total_steps: 4\ntrain_batch_size: 8\nmodel: m\ntask: sort_digits\n")
    command = [sys.executable, "-c", LOADED, str(tmp_path / "run.yaml"), "--algorithm.params.clip_low", "3"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert "algorithm.params.clip_low must be a number" in said[0]
    assert said[-1] == "True False"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.compile", "maybe", r"^model\.compile must be true or false, or auto, not 'maybe'$"),
        ("optimizer.token_budget", -3, r"^optimizer\.token_budget must be at least 0, or auto, not -3$"),
        ("optimizer.token_budget", "many", r"^optimizer\.token_budget must be a whole number, or auto, not 'many'$"),
    ],
)
def test_a_key_that_may_be_auto_has_one_message(key, value, said):
    with pytest.raises(ConfigError, match=said) as raised:
        load_run_config(**{"total_steps": 1, "train_batch_size": 8, "model": "m", "task": "sort_digits", key: value})
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.device", "gpu", "model.device: write cpu, cuda or cuda:0, not 'gpu'"),
        ("engine.device", "cuda0", "engine.device: write cpu, cuda or cuda:0, not 'cuda0'"),
        ("model.dtype", "fp16", "model.dtype: write float16, not 'fp16'"),
        ("model.dtype", "float23", "model.dtype: write float32, float64, bfloat16 or float16, not 'float23'"),
        ("optimizer.schedule", "cosin", "optimizer.schedule must be constant, linear or cosine, not 'cosin'; did you "
         "mean 'cosine'?"),
        ("schedule", "inorder", "schedule must be in_order or windowed, not 'inorder'; did you mean 'in_order'?"),
        ("eval", "sort_digits", "eval must be a list, not 'sort_digits'"),
        ("task.columns", "question", "task.columns must be a mapping, {key: value}, not 'question'"),
        ("sampling.top_p", 1.5, "sampling.top_p must be at most 1, not 1.5"),
        ("sampling.temperature", 0, "sampling.temperature must be more than 0, not 0"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_answered_with_what_to_write(key, value, said):
    with pytest.raises(ConfigError) as raised:
        load_run_config(**{**DETACHED, key: value})
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"kind": "native"}, "engine.address is of a vLLM server, and engine.kind is native: set engine.kind: vllm"),
        ({"address": "localhost:8000"}, "engine.address is 'localhost:8000': write it like http://127.0.0.1:8000"),
        ({"address": "http://"}, "engine.address is 'http://': write it like http://127.0.0.1:8000"),
        (
            {"kind": "hf", "address": None, "options": {"block_size": 32}},
            "engine.options are vLLM's own arguments, and engine.kind is hf: set engine.kind: vllm",
        ),
        ({"options": {"block_size": 32}}, "leave engine.options out, and start the server with its own options"),
        ({"cache_tokens": 2000}, "leave engine.cache_tokens out, and start the server with its own options"),
    ],
)
def test_what_a_vllm_server_cannot_be_told_is_refused_before_anything_is_loaded(engine, said):
    server = {"kind": "vllm", "address": "http://127.0.0.1:8000"}
    assert load_run_config(**{**DETACHED, "engine": server}).engine.address == server["address"]
    with pytest.raises(ConfigError) as raised:
        load_run_config(**{**DETACHED, "engine": {**server, **engine}})
    assert said in str(raised.value)


def test_names_of_dtypes_are_those_that_models_are_loaded_in():
    assert tuple(_DTYPES) == DTYPES


def test_rewards_and_callbacks_have_short_forms():
    functions = ["my_rewards:exact", "my_rewards:short"]
    for reward in (functions[0], functions):
        short = load_run_config(**{**DETACHED, "reward": reward, "reward.workers": 0})
        long = load_run_config(**{**DETACHED, "reward": {"functions": reward, "workers": 0}})
        assert short == long
        assert short.reward.functions == functions[: len(short.reward.functions)]
    written = RunConfig(**DETACHED, callbacks=[{"kind": "console"}, {"kind": "tracer"}])
    assert RunConfig(**DETACHED, callbacks=["console", "tracer"]) == written
    assert RunConfig(**DETACHED, callbacks="console").callbacks == written.callbacks[:1]
