"""Every field of a benchmark's predictions and scores, and whose weights and seeds they are of."""

import asyncio
import copy
import json
import math

import pytest
import torch
from small_experiment import MODEL

from proa.config import ConfigError, load_run_config
from proa.config.run_config import EvalSection
from proa.data.lease import sample_seed
from proa.data.state import LoopState
from proa.recipes.benchmark import Benchmark
from proa.recipes.evaluation import Policy, eval_task, scoring
from proa.recipes.given import Given
from proa.recipes.material import load_material
from proa.recipes.model_eval import evaluate_folder
from proa.tasks import Task
from proa.tasks.builtin import builtin_task
from proa.tasks.task import TaskRow

ROWS = [
    TaskRow("12>", {"id": "first", "kind": "short"}),
    TaskRow("345>", {"id": "second", "kind": "long"}),
    TaskRow("678>", {"id": "third", "kind": "long"}),
]


def by_kind(completions, kind, **_):
    """What a completion is worth, so that each case is there: nothing known, just enough, more than that."""
    return [None if one == "short" else 0.5 for one in kind]


@pytest.fixture
def config(tmp_path):
    return load_run_config(
        None, name="r", output_dir=tmp_path, total_steps=1, train_batch_size=4, model={"config": MODEL}, seed=7,
        task="sort_digits", sampling={"max_new_tokens": 5, "group_size": 2},
    )  # fmt: skip


@pytest.fixture
def material(config):
    return load_material(config, Given())


def benchmark(config, material, rows=ROWS, max_new_tokens=5, **section):
    settings = {"name": "b", "metric": f"{__name__}:by_kind", "count": 3} | section
    return Benchmark(
        EvalSection(**settings), Task("t", rows), material, engine=config.engine, max_new_tokens=max_new_tokens, seed=7
    )


def test_a_prediction_says_all_that_is_known_of_a_completion(config, material):
    section = {"samples": 2, "correct_at": 0.5, "tags": ["x"], "breakdown": ["kind"]}
    scored = benchmark(config, material, **section).score(version=4, step=9)
    first, second = scored.predictions[0], scored.predictions[2]
    assert [(row["task_id"], row["sample"]) for row in scored.predictions] == [
        (name, sample) for name in ("first", "second", "third") for sample in (0, 1)
    ]
    assert (first["prompt"], first["reward"], first["correct"]) == ("12>", None, None)
    assert first["error"]
    assert (second["prompt"], second["reward"], second["correct"], second["error"]) == ("345>", 0.5, True, None)
    assert {row["policy_version"] for row in scored.predictions} == {4}
    assert all(0 < row["tokens"] <= 5 and row["finish_reason"] in ("stop", "length") for row in scored.predictions)
    assert second["columns"]["kind"] == "long"
    result = scored.result
    assert (result.step, result.tags, result.name, result.benchmark_id) == (9, ["x"], "b", "b")
    assert result.metrics["by_kind"] == 0.5
    assert result.metrics["errors"] == 2
    assert {"pass@2", "mean@2", "completion_tokens"} <= result.metrics.keys()
    assert result.breakdowns["kind"]["long"]["n"] == 4
    assert result.eval_seconds > 0


def test_just_below_what_counts_as_correct_is_not(config, material):
    predictions = benchmark(config, material, correct_at=0.6).score(version=0, step=None).predictions
    assert [row["correct"] for row in predictions] == [None, False, False]


def greedy(material, prompt, count):
    tokens = material.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    made = []
    for _ in range(count):
        with torch.no_grad():
            made.append(int(material.model(torch.tensor([tokens + made])).logits[0, -1].argmax()))
        if made[-1] in material.end_ids:
            break
    return made


def test_a_completion_is_the_greedy_one_and_its_tokens_are_counted_as_tokens(config, material):
    for row, given in zip(benchmark(config, material).score(version=0, step=None).predictions, ROWS, strict=True):
        expected = greedy(material, given.prompt, 5)
        assert row["completion"] == material.tokenizer.decode(expected, skip_special_tokens=True)
        assert row["tokens"] == len(expected)


def test_it_scores_the_weights_as_they_are_now(config, material):
    one = benchmark(config, material)
    before = one.score(version=0, step=None).predictions
    with torch.no_grad():
        for parameter in material.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    after = one.score(version=1, step=None).predictions
    assert [row["completion"] for row in before] != [row["completion"] for row in after]
    fresh = benchmark(config, copy.deepcopy(material)).score(version=1, step=None).predictions
    assert after == fresh


def test_its_seeds_are_its_own_and_differ_by_task_and_sample(config, material):
    predictions = benchmark(config, material, samples=2).score(version=0, step=None).predictions
    seeds = [row["seed"] for row in predictions]
    assert len(set(seeds)) == 6
    training = {sample_seed(7, ordinal, sample) for ordinal in range(100) for sample in range(8)}
    assert not training & set(seeds)
    other = Benchmark(
        EvalSection(name="b", metric=f"{__name__}:by_kind", samples=2), Task("t", ROWS), material,
        engine=config.engine, max_new_tokens=5, seed=8,
    )  # fmt: skip
    assert not set(seeds) & {row["seed"] for row in other.score(version=0, step=None).predictions}


def test_it_takes_so_many_rows_and_no_prompt_without_room(config, material):
    assert len(benchmark(config, material, count=2).score(version=0, step=None).predictions) == 2
    benchmark(config, material, max_new_tokens=20)  # 4 + 20 is the context
    with pytest.raises(ConfigError, match="25 tokens, and the model's context is 24"):
        benchmark(config, material, max_new_tokens=21)


def test_without_an_id_of_its_own_a_task_is_its_place(config, material):
    rows = [TaskRow("1>", {"kind": "x"}), TaskRow("2>", {"kind": "x"})]
    predictions = benchmark(config, material, rows=rows).score(version=0, step=None).predictions
    assert [row["task_id"] for row in predictions] == ["0", "1"]


def test_an_eval_in_the_loop_says_which_step_and_version_it_is_of(config, material):
    state = LoopState(global_step=6, policy_version=5)
    section = EvalSection(name="held", count=2)
    scored = scoring(section, config, material, lambda: state)()
    assert (scored.result.step, scored.predictions[0]["policy_version"]) == (5, 5)
    prompts = {row.prompt for row in builtin_task("sort_digits", "train", 2000).rows}
    assert not prompts & {row["prompt"] for row in scored.predictions}
    assert [row.prompt for row in eval_task(section, config).rows] == [row["prompt"] for row in scored.predictions]


def test_an_evaluator_of_ones_own_is_given_the_policy_as_it_is(config, material):
    seen = []

    def own(policy):
        seen.append((policy.step, policy.version, policy.generate(["12>"], samples=3, temperature=1.0, seed=1)))
        return {"score": 1, "predictions": [{"reward": 1.0}]}

    section = EvalSection(name="own", evaluator="theirs:own", tags=["t"])
    scored = scoring(section, config, material, lambda: LoopState(global_step=6, policy_version=5), own)()
    ((step, version, ((*texts,),)),) = seen
    assert (step, version, len(texts)) == (6, 5, 3)
    assert len(set(texts)) > 1  # each sample has a seed of its own
    assert (scored.result.metrics, scored.result.step, scored.result.tags) == ({"score": 1.0}, 5, ["t"])
    assert scored.predictions == [{"reward": 1.0}]
    with pytest.raises(ConfigError, match="returns numbers by name"):
        scoring(section, config, material, LoopState, lambda policy: {"score": 1.0, "note": "fine"})()


def test_generating_by_the_policy_is_greedy_unless_asked_for(config, material):
    policy = Policy(material.model, material.tokenizer, 0, 0, material, config)
    ((text,),) = policy.generate(["345>"])
    assert text == material.tokenizer.decode(greedy(material, "345>", 5), skip_special_tokens=True)


def test_a_folder_is_scored_with_its_own_tokenizer_and_as_after_training(config, material, tmp_path):
    material.model.save_pretrained(tmp_path / "model")
    material.tokenizer.save_pretrained(tmp_path / "model")
    scored = evaluate_folder(tmp_path / "model", EvalSection(name="e", count=2), config, version=3, steps=9)
    direct = scoring(EvalSection(name="e", count=2), config, material, lambda: LoopState(global_step=9))()
    assert scored.result.step is None
    assert scored.predictions[0]["policy_version"] == 3
    assert [row["completion"] for row in scored.predictions] == [row["completion"] for row in direct.predictions]
    assert json.dumps(scored.predictions)


def never_both(completions, **_):
    return [None if place % 2 else 1.0 for place in range(len(completions))]


def test_where_no_task_has_all_of_its_samples_judged_pass_at_k_is_no_number_and_nothing_fails(config, material):
    scored = benchmark(config, material, metric=f"{__name__}:never_both", samples=2).score(version=0, step=None)
    assert math.isnan(scored.result.metrics["pass@2"])
    assert scored.result.metrics["errors"] == 3


def test_an_async_evaluator_works_where_an_event_loop_runs_already(config, material):
    async def own(policy):
        await asyncio.sleep(0)
        return {"score": 2.0}

    async def notebook():
        return scoring(EvalSection(name="own", evaluator="theirs:own"), config, material, LoopState, own)()

    assert asyncio.run(notebook()).result.metrics == {"score": 2.0}
