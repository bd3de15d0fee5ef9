"""After a run in one process callbacks can be read as after one on Ray: by the actor that they were with."""

import json
import threading

import pytest
from tests.small import DETACHED as SMALL

from proa import MakerCallback, TrainerCallback
from proa.callbacks import ExperienceMakerPerformanceEvaluator, TrainerPerformanceEvaluator
from proa.config import load_run_config
from proa.errors import HookError
from proa.recipes import grpo, sft


class Counts(TrainerCallback):
    def __init__(self):
        self.steps = 0

    def on_batch_end(self, metrics, experience):
        self.steps += 1


class Makes(MakerCallback):
    def __init__(self):
        self.made = 0

    def on_make_experience_end(self, experience):
        self.made += len(experience)


class MakesApart(Makes):
    per_maker = True


@pytest.fixture
def run(tmp_path):
    def train(recipe=grpo, name="run", common=SMALL, **settings):
        recipe(**{**common, "output_dir": tmp_path, "name": name, "total_steps": 2, **settings})
        return json.loads((tmp_path / name / "run.json").read_text())

    return train


def test_makers_share_an_instance_or_have_a_copy_each_and_both_are_found_by_name(run):
    counts, shared, apart = Counts(), Makes(), MakesApart()
    run(makers=2, callbacks=[counts, shared, apart])
    assert counts.actor_copies == {"trainer_0": counts}
    assert shared.actor_copies == {"maker_0": shared, "maker_1": shared}
    assert shared.made == 16
    assert set(apart.actor_copies) == {"maker_0", "maker_1"}
    assert sum(copy.made for copy in apart.actor_copies.values()) == 16
    assert apart.made == 0


def test_copies_are_those_of_the_last_run_and_are_not_copied_themselves(run):
    apart = MakesApart()
    run(makers=2, callbacks=[apart])
    run(makers=1, name="again", callbacks=[apart])
    assert set(apart.actor_copies) == {"maker_0"}
    assert apart.actor_copies["maker_0"].actor_copies == {}
    assert apart.actor_copies["maker_0"].made == 16


def test_one_that_cannot_be_copied_for_each_maker_is_refused_with_the_remedy(run):
    apart = MakesApart()
    apart.lock = threading.Lock()
    with pytest.raises(HookError, match=r"MakesApart has per_maker = True and cannot be copied.*functools.partial"):
        run(callbacks=[apart])


@pytest.mark.parametrize("are_kinds", [False, True], ids=["objects", "kinds"])
def test_what_evaluators_measure_is_in_the_header_for_each_maker_by_itself(run, tmp_path, capsys, are_kinds):
    params = {"actor_num_params": 10}
    if are_kinds:
        kinds = {"trainer_performance": "ignore_first_episodes", "maker_performance": "ignore_first_batches"}
        sections = [{"kind": kind, "params": {**params, key: 0}} for kind, key in kinds.items()]
        settings = {
            **SMALL,
            "name": "run",
            "output_dir": str(tmp_path),
            "total_steps": 2,
            "makers": 2,
            "callbacks": sections,
        }
        grpo(load_run_config(None, **settings))
        measured = json.loads((tmp_path / "run" / "run.json").read_text())["performance"]
    else:
        trainer = TrainerPerformanceEvaluator(**params, ignore_first_episodes=0)
        maker = ExperienceMakerPerformanceEvaluator(**params, ignore_first_batches=0)
        measured = run(makers=2, callbacks=[trainer, maker])["performance"]
        assert measured["maker_1"] == maker.actor_copies["maker_1"].performance.to_dict()
    assert list(measured) == ["trainer_0", "maker_0", "maker_1"]
    assert measured["trainer_0"]["samples"] == 16
    assert measured["maker_0"]["samples"] + measured["maker_1"]["samples"] == 16
    assert set(measured["maker_0"]["shares"]) == {"making", "sending", "other"}
    printed = capsys.readouterr().out
    assert printed.count("trainer performance") == 1
    assert printed.count("maker performance") == 2


def test_a_run_without_evaluators_has_no_such_entry_and_one_without_makers_has_one(run):
    assert "performance" not in run()
    counts, evaluator = Counts(), TrainerPerformanceEvaluator(10, ignore_first_episodes=0)
    common = {key: SMALL[key] for key in ("model", "task", "train_batch_size")}
    found = run(sft, "sft", common, callbacks=[counts, evaluator])
    assert list(found["performance"]) == ["trainer_0"]
    assert counts.actor_copies == {"trainer_0": counts}
