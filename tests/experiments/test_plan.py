"""The plan of an experiment: which runs there are, from which weights; what is wrong with them is found before any."""

import sys

import pytest
from tests.experiments.small_experiment import RUN

from proa import Callback
from proa.callbacks import registry
from proa.config import ConfigError, load_experiment_config
from proa.experiments.plan import compared, plan

STAGES = {"continual": {"datasets": ["copy", "sort_digits", "reverse"]}}


def planned(**experiment):
    return plan(load_experiment_config(None, **{"name": "e", "output_dir": "out"} | experiment))


def only_chain(run, **experiment):
    [chain] = planned(runs={"a": run}, **STAGES | experiment)
    return chain


# Arms and repeats.


def test_repeats_of_an_arm_are_adjacent_and_have_seeds_from_the_arms_own():
    runs = [run for chain in planned(runs={"a": {**RUN, "seed": 7}, "b": RUN}, n_repeats=2) for run in chain]
    assert [(run.key, run.arm, run.group, run.seed) for run in runs] == [
        ("a__s7", "a", "a", 7), ("a__s8", "a", "a", 8), ("b__s0", "b", "b", 0), ("b__s1", "b", "b", 1),
    ]  # fmt: skip


def test_a_base_seed_is_that_of_every_arms_first_repeat():
    assert [chain[0].key for chain in planned(runs={"a": {**RUN, "seed": 7}, "b": RUN}, n_repeats=2, base_seed=3)] == [
        "a__s3", "a__s4", "b__s3", "b__s4",
    ]  # fmt: skip
    [(alone,)] = planned(run={**RUN, "seed": 7}, base_seed=3)
    assert (alone.key, alone.group, alone.seed, alone.config.seed) == ("e", None, 3, 3)


# Stages.


def test_each_stage_has_the_next_task_and_starts_from_the_model_of_the_stage_just_before():
    chain = only_chain(RUN)
    assert [(run.key, run.arm, run.group, run.config.task.source, run.config.model.path) for run in chain] == [
        ("a_stage0", "a_stage0", "a", "copy", None),
        ("a_stage1", "a_stage1", "a", "sort_digits", "out/e/a_stage0/model"),
        ("a_stage2", "a_stage2", "a", "reverse", "out/e/a_stage1/model"),
    ]
    assert chain[0].config.model.config == RUN["model"]["config"]
    assert [run.config.model.config for run in chain[1:]] == [None, None]


def test_stages_of_a_repeat_go_on_from_stages_of_the_same_repeat():
    chains = planned(runs={"a": RUN}, n_repeats=2, base_seed=5, **STAGES)
    assert [[(run.key, run.group, run.config.model.path) for run in chain[:2]] for chain in chains] == [
        [("a_stage0__s5", "a_stage0", None), ("a_stage1__s5", "a_stage1", "out/e/a_stage0__s5/model")],
        [("a_stage0__s6", "a_stage0", None), ("a_stage1__s6", "a_stage1", "out/e/a_stage0__s6/model")],
    ]


def test_a_later_stage_keeps_what_its_arm_says_of_loading_a_model():
    own = {"tokenizer": "words", "dtype": "bfloat16", "device": "cuda", "trust_remote_code": True}
    chain = only_chain({**RUN, "model": {"path": "start", **own}})
    for run in chain:
        assert run.config.model.model_dump(include=set(own)) == own


WARM = {"algorithm": "grpo", "warm_start": {"steps": 3}, "sampling": {"group_size": 4}}


def test_only_the_first_stage_has_a_warm_start():
    chain = only_chain({**RUN, **WARM})
    assert [run.config.warm_start is None for run in chain] == [False, True, True]


def test_stages_of_an_adapter_go_on_from_the_adapter_before_over_the_model_of_all():
    chain = only_chain({**RUN, "model": {"path": "start", "dtype": "bfloat16"}, "lora": {"rank": 4}})
    assert [run.config.model.path for run in chain] == ["start", "start", "start"]
    assert [run.config.model.dtype for run in chain] == ["bfloat16"] * 3
    assert [run.config.lora.path for run in chain] == [None, "out/e/a_stage0/model", "out/e/a_stage1/model"]
    assert chain[0].config.lora.rank == 4


@pytest.mark.parametrize("made_here", [{}, WARM, {**WARM, "model": {"path": "start"}}])
def test_an_adapters_base_that_the_first_stage_makes_is_in_its_folder(made_here):
    chain = only_chain({**RUN, **made_here, "lora": {"rank": 4}})
    assert [run.config.model.path for run in chain[1:]] == ["out/e/a_stage0/base"] * 2
    assert not any(run.config.has_warm_start for run in chain[1:])


def test_two_runs_of_one_name_are_refused():
    cut_to_a_letter = {"datasets": ["copy"], "name_template": "{arm:.1}{stage}"}
    with pytest.raises(ConfigError, match="two runs would be called b0: give the arms other names"):
        planned(runs={"b": RUN, "bold": RUN}, continual=cut_to_a_letter)


def test_an_arm_may_be_called_like_the_stage_of_another():
    chains = planned(runs={"a": RUN, "a_stage0": RUN}, continual={"datasets": ["copy"]})
    assert [run.key for chain in chains for run in chain] == ["a_stage0", "a_stage0_stage0"]


# What is found before anything runs.


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        ({"kind": "early_stoping"}, r"early_stoping.*did you mean 'early_stopping'"),
        ({"kind": "early_stopping", "params": {"metrc": "loss"}}, "no parameter 'metrc'; did you mean 'metric'"),
        ({"kind": "early_stopping"}, "missing a required argument: 'metric'"),
        ({"kind": "early_stopping", "params": {"metric": "loss", "patience": 0}}, "patience is 1 or more"),
        (
            {"kind": "early_stopping", "params": {"metric": "loss", "patience": "two"}},
            r"\(early_stopping\): .*TypeError: '<' not",
        ),
    ],
)
def test_a_mistake_in_callbacks_is_told_with_whose_and_which_it_is(callback, words):
    sections = [{"kind": "console"}, callback]
    with pytest.raises(ConfigError, match=rf"^arm b: callbacks\.1 .*{words}"):
        planned(runs={"a": RUN, "b": {**RUN, "callbacks": sections}})
    with pytest.raises(ConfigError, match=rf"^callbacks\.1 .*{words}"):
        planned(runs={"a": RUN}, callbacks=sections)


def test_callbacks_that_differ_by_arm_are_each_looked_at():
    run = {**RUN, "callbacks": [{"kind": "early_stopping", "params": {"metric": "loss"}}]}
    with pytest.raises(ConfigError, match=r"^arm patience-0: callbacks\.0 "):
        planned(matrix={"run": run, "over": {"callbacks.0.params.patience": [1, 0]}})


def test_a_callback_of_another_package_is_not_built_for_a_plan_but_its_parameters_are_looked_at(monkeypatch):
    built = []

    class Counting(Callback):
        def __init__(self, *, room):
            built.append(room)

    monkeypatch.setitem(registry._KINDS.registered, "counting", Counting)
    planned(runs={"a": {**RUN, "callbacks": [{"kind": "counting", "params": {"room": 1}}]}})
    with pytest.raises(ConfigError, match=r"^arm a: callbacks\.0 .* no parameter 'rom'; did you mean 'room'"):
        planned(runs={"a": {**RUN, "callbacks": [{"kind": "counting", "params": {"rom": 1}}]}})
    assert built == []


def test_no_loggers_library_is_imported_for_a_plan(monkeypatch, tmp_path):
    for library in ("wandb", "trackio", "torch.utils.tensorboard", "tensorboard"):
        monkeypatch.setitem(sys.modules, library, None)  # it is there, and importing it fails
    monkeypatch.chdir(tmp_path)
    others = [{"kind": "trackio"}, {"kind": "tensorboard"}]
    assert planned(runs={"a": {**RUN, "callbacks": [{"kind": "wandb"}]}}, callbacks=others)
    assert list(tmp_path.iterdir()) == []


def test_arms_stand_against_each_other_by_their_last_stage():
    assert compared(planned(runs={"a": RUN, "b": RUN}, n_repeats=2)) == ["a", "b"]
    assert compared(planned(runs={"a": RUN, "b": RUN}, n_repeats=2, **STAGES)) == ["a_stage2", "b_stage2"]
