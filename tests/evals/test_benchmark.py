"""Every field of a benchmark's predictions and scores, and whose weights and seeds they are of."""

import asyncio
import copy
import json
import math

import pytest
import torch
from tests.experiments.small_experiment import MODEL

from proa.config import ConfigError, change_run_config, load_run_config
from proa.config.eval_section import EvalSection
from proa.data.lease import sample_seed
from proa.errors import ProaError
from proa.evals.benchmark import Benchmark
from proa.evals.evaluation import build_eval, eval_task, weights_version
from proa.evals.generation import EvalEngine
from proa.evals.given_eval import GivenEval
from proa.evals.own_evaluator import EvaluatedPolicy
from proa.evals.scoring import At
from proa.run.evaluate import evaluate_folder
from proa.run.given import Given
from proa.run.loading import begin_training, load_policy
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
        None, name="r", output_dir=tmp_path, total_steps=1, train_batch_size=4, seed=7,
        model={"config": MODEL, "device": "cpu", "dtype": "float32"},
        task="sort_digits", sampling={"max_new_tokens": 5, "group_size": 2},
    )  # fmt: skip


@pytest.fixture
def policy(config):
    return load_policy(config, Given())


def benchmark(config, policy, rows=ROWS, max_new_tokens=5, **section):
    settings = {"name": "b", "metric": f"{__name__}:by_kind", "count": 3} | section
    return Benchmark(
        EvalSection(**settings), Task("t", rows), policy, engine=config.engine, max_new_tokens=max_new_tokens, seed=7
    )


def test_a_prediction_says_all_that_is_known_of_a_completion(config, policy):
    section = {"samples": 2, "correct_at": 0.5, "tags": ["x"], "breakdown": ["kind"]}
    scored = benchmark(config, policy, **section).score(At(10, 4))
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
    assert (result.step, result.tags, result.name, result.benchmark_id) == (9, ["x"], "b", "t")
    assert result.metrics["by_kind"] == 0.5
    assert result.metrics["errors"] == 2
    assert {"pass@2", "mean@2", "completion_tokens"} <= result.metrics.keys()
    assert result.breakdowns["kind"]["long"]["n"] == 4
    assert result.eval_seconds > 0


def said_by(prompts, completions, **_):
    """How many messages a completion has that the assistant says."""
    assert all(prompt[0] == {"role": "user", "content": "12"} for prompt in prompts)
    return [float(sum(message["role"] == "assistant" for message in one)) for one in completions]


def test_a_metric_gets_messages_where_the_prompts_are_messages_as_rewards_do(config, policy):
    policy.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}>"
    rows = [TaskRow([{"role": "user", "content": "12"}], {})]
    scored = benchmark(config, policy, rows, metric=f"{__name__}:said_by").score(At(0, 0))
    (row,) = scored.predictions
    assert (row["reward"], row["error"], type(row["completion"])) == (1.0, None, str)
    assert row["prompt"] == rows[0].prompt


def test_just_below_what_counts_as_correct_is_not(config, policy):
    predictions = benchmark(config, policy, correct_at=0.6).score(At(0, 0)).predictions
    assert [row["correct"] for row in predictions] == [None, False, False]


def greedy(policy, prompt, count):
    tokens = policy.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    made = []
    for _ in range(count):
        with torch.no_grad():
            made.append(int(policy.model(torch.tensor([tokens + made])).logits[0, -1].argmax()))
        if made[-1] in policy.end_ids:
            break
    return made


def test_a_completion_is_the_greedy_one_and_its_tokens_are_counted_as_tokens(config, policy):
    for row, given in zip(benchmark(config, policy).score(At(0, 0)).predictions, ROWS, strict=True):
        expected = greedy(policy, given.prompt, 5)
        assert row["completion"] == policy.tokenizer.decode(expected, skip_special_tokens=True)
        assert row["tokens"] == len(expected)


def test_it_scores_the_weights_as_they_are_now(config, policy):
    one = benchmark(config, policy)
    before = one.score(At(0, 0)).predictions
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    after = one.score(At(0, 1)).predictions
    assert [row["completion"] for row in before] != [row["completion"] for row in after]
    fresh = benchmark(config, copy.deepcopy(policy)).score(At(0, 1)).predictions
    assert after == fresh


def test_its_seeds_are_its_own_and_differ_by_task_and_sample(config, policy):
    predictions = benchmark(config, policy, samples=2).score(At(0, 0)).predictions
    seeds = [row["seed"] for row in predictions]
    assert len(set(seeds)) == 6
    training = {sample_seed(7, ordinal, sample) for ordinal in range(100) for sample in range(8)}
    assert not training & set(seeds)
    other = Benchmark(
        EvalSection(name="b", metric=f"{__name__}:by_kind", samples=2), Task("t", ROWS), policy,
        engine=config.engine, max_new_tokens=5, seed=8,
    )  # fmt: skip
    assert not set(seeds) & {row["seed"] for row in other.score(At(0, 0)).predictions}


def test_it_takes_so_many_rows_and_no_prompt_without_room(config, policy):
    assert len(benchmark(config, policy, count=2).score(At(0, 0)).predictions) == 2
    benchmark(config, policy, max_new_tokens=20)  # 4 + 20 is the context
    with pytest.raises(ConfigError, match="25 tokens, and the model's context is 24"):
        benchmark(config, policy, max_new_tokens=21)


def test_without_an_id_of_its_own_a_task_is_its_place(config, policy):
    rows = [TaskRow("1>", {"kind": "x"}), TaskRow("2>", {"kind": "x"})]
    predictions = benchmark(config, policy, rows=rows).score(At(0, 0)).predictions
    assert [row["task_id"] for row in predictions] == ["0", "1"]


def test_an_eval_in_the_loop_says_which_step_and_version_it_is_of(config, policy):
    section = EvalSection(name="held", count=2)
    scored = build_eval(section, config, policy).score(At(6, 5))
    assert (scored.result.step, scored.predictions[0]["policy_version"]) == (5, 5)
    prompts = {row.prompt for row in builtin_task("sort_digits", "train", 2000).rows}
    assert not prompts & {row["prompt"] for row in scored.predictions}
    assert [row.prompt for row in eval_task(section, config).rows] == [row["prompt"] for row in scored.predictions]


def test_an_evaluator_of_ones_own_is_given_the_policy_as_it_is(config, policy):
    seen = []

    def own(policy):
        seen.append((policy.step, policy.version, policy.generate(["12>"], samples=3, temperature=1.0, seed=1)))
        return {"score": 1, "predictions": [{"reward": 1.0}]}

    section = EvalSection(name="own", evaluator="theirs:own", tags=["t"])
    scored = build_eval(section, config, policy, GivenEval(own)).score(At(6, 5))
    ((step, version, ((*texts,),)),) = seen
    assert (step, version, len(texts)) == (6, 5, 3)
    assert len(set(texts)) > 1  # each sample has a seed of its own
    assert (scored.result.metrics, scored.result.step, scored.result.tags) == ({"score": 1.0}, 5, ["t"])
    assert scored.predictions == [{"reward": 1.0}]
    with pytest.raises(ConfigError, match="returns numbers by name"):
        build_eval(section, config, policy, GivenEval(lambda policy: {"score": 1.0, "note": "fine"})).score(At(0, 0))


def evaluated(config, policy):
    return EvaluatedPolicy(policy.model, policy.tokenizer, 0, 0, policy, EvalEngine(config.engine), config)


def test_each_prompt_that_the_policy_completes_has_seeds_of_its_own(config, policy):
    texts = evaluated(config, policy).generate(["12>"] * 4, temperature=1.0, samples=2, seed=3)
    assert len({text for group in texts for text in group}) > 2
    again = evaluated(config, policy).generate(["12>"] * 4, temperature=1.0, samples=2, seed=3)
    other = evaluated(config, policy).generate(["12>"] * 4, temperature=1.0, samples=2, seed=4)
    assert texts == again != other
    assert evaluated(config, policy).generate([]) == []
    with pytest.raises(ConfigError, match="with temperature 0 all 2 samples would be the same"):
        evaluated(config, policy).generate(["12>"], samples=2)


def test_generating_by_the_policy_is_greedy_unless_asked_for(config, policy):
    ((text,),) = evaluated(config, policy).generate(["345>"])
    assert text == policy.tokenizer.decode(greedy(policy, "345>", 5), skip_special_tokens=True)


def test_a_folder_is_scored_with_its_own_tokenizer_and_as_after_training(config, policy, tmp_path):
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    scored = evaluate_folder(tmp_path / "model", EvalSection(name="e", count=2), config, version=3, steps=9)
    direct = build_eval(EvalSection(name="e", count=2), config, policy).score(At(9, 0))
    assert scored.result.step is None
    assert scored.predictions[0]["policy_version"] == 3
    assert [row["completion"] for row in scored.predictions] == [row["completion"] for row in direct.predictions]
    assert json.dumps(scored.predictions)


def never_both(completions, **_):
    return [None if place % 2 else 1.0 for place in range(len(completions))]


def test_where_no_task_has_all_of_its_samples_judged_pass_at_k_is_no_number_and_nothing_fails(config, policy):
    scored = benchmark(config, policy, metric=f"{__name__}:never_both", samples=2).score(At(0, 0))
    assert math.isnan(scored.result.metrics["pass@2"])
    assert scored.result.metrics["errors"] == 3


def test_an_async_evaluator_works_where_an_event_loop_runs_already(config, policy):
    async def own(policy):
        await asyncio.sleep(0)
        return {"score": 2.0}

    async def notebook():
        return build_eval(EvalSection(name="own", evaluator="theirs:own"), config, policy, GivenEval(own)).score(
            At(0, 0)
        )

    assert asyncio.run(notebook()).result.metrics == {"score": 2.0}


@pytest.mark.parametrize(
    ("rows", "section", "message"),
    [
        (ROWS, {"breakdown": ["kinds"]}, "eval b: there is no 'kinds' to break down by.*kind"),
        (ROWS, {"breakdown": ["length"]}, "eval b: there is no 'length' to break down by: its rows have id, kind"),
        ([ROWS[0], TaskRow("1>", {"kind": "x"})], {}, "'id' is in some rows and not in others"),
        ([TaskRow("1>", {"id": "x"})], {}, "kind"),
        ([], {}, "eval b: the task t has no rows"),
    ],
)
def test_what_is_wrong_with_its_columns_is_found_when_it_is_built(config, policy, rows, section, message):
    with pytest.raises(ProaError, match=message):
        benchmark(config, policy, rows=rows, **section)


def test_rows_that_are_not_scored_may_have_other_columns(config, policy):
    benchmark(config, policy, rows=[*ROWS, TaskRow("1>", {})], count=3)


def test_scores_are_broken_down_by_what_every_row_has_too(config, policy):
    scored = benchmark(config, policy, breakdown=["finish_reason"]).score(At(0, 0))
    assert sum(one["n"] for one in scored.result.breakdowns["finish_reason"].values()) == 2


def all_but_one(completions, **_):
    return [None if place == 0 else 1.0 for place in range(len(completions))]


def test_pass_at_k_says_over_how_many_tasks_it_is_if_not_all(config, policy):
    metrics = benchmark(config, policy, samples=2, metric=f"{__name__}:all_but_one").score(At(0, 0)).result.metrics
    assert (metrics["pass@2"], metrics["pass@2_tasks"]) == (1.0, 2)
    assert "pass@2_tasks" not in benchmark(config, policy, rows=ROWS[1:], samples=2).score(At(0, 0)).result.metrics


def test_what_was_begun_scores_the_weights_as_they_were_then(config, policy):
    one = benchmark(config, policy)
    expected = one.score(At(0, 0))
    begun = one.begin(At(0, 0))
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.zero_()
    assert begun.score().predictions == expected.predictions


def test_an_evaluator_that_is_called_apart_sees_the_model_as_it_was_when_the_eval_began(config, policy):
    def own(policy):
        return {
            "norm": sum(float(one.norm()) for one in policy.model.parameters()),
            "text": len(policy.generate(["1>"])[0][0]),
        }

    one = build_eval(EvalSection(name="own", evaluator="theirs:own", apart=True), config, policy, GivenEval(own))
    expected = one.score(At(0, 0)).result.metrics
    begun = one.begin(At(0, 0))
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.zero_()
    assert begun.score().result.metrics == expected
    assert one.score(At(0, 0)).result.metrics["norm"] == 0


@pytest.mark.parametrize(
    ("total", "update", "epochs", "versions"),
    [
        (3, 1, 1, [0, 1, 2, 3]),
        (5, 2, 1, [0, 0, 1, 1, 2, 3]),
        (2, 1, 2, [0, 0, 1, 1, 2]),
        (3, 2, 2, [0, 0, 0, 0, 1, 1, 2]),
    ],
)
def test_the_version_of_weights_is_what_they_are_pushed_as(config, total, update, epochs, versions):
    config = change_run_config(config, total_steps=total, update_steps=update, train_epochs=epochs)
    assert [weights_version(config, steps) for steps in range(total * epochs + 1)] == versions


def lora(config, policy, folder):
    """The same model with an adapter that matters."""
    config = change_run_config(config, lora={"rank": 2})
    given = Given(policy.model, policy.tokenizer)
    policy = load_policy(config, given)
    begin_training(policy, folder, resumed=False)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    return config, policy


def test_with_an_adapter_the_policy_and_a_benchmark_complete_as_the_two_together(config, policy, tmp_path):
    plain = greedy(policy, "345>", 5)
    config, policy = lora(config, policy, tmp_path)
    expected = greedy(policy, "345>", 5)
    assert expected != plain
    text = policy.tokenizer.decode(expected, skip_special_tokens=True)
    assert evaluated(config, policy).generate(["345>"]) == [[text]]
    assert benchmark(config, policy, rows=ROWS[1:2]).score(At(0, 0)).predictions[0]["completion"] == text


def test_an_adapters_folder_is_scored_over_its_base(config, policy, tmp_path):
    config, policy = lora(config, policy, tmp_path)
    policy.save(tmp_path / "adapter")
    section = EvalSection(name="e", count=3)
    scored = evaluate_folder(tmp_path / "adapter", section, config)
    direct = build_eval(section, config, policy).score(At(0, 0))
    assert [row["completion"] for row in scored.predictions] == [row["completion"] for row in direct.predictions]
    plain = evaluate_folder(tmp_path / "base", section, config)
    assert [row["completion"] for row in scored.predictions] != [row["completion"] for row in plain.predictions]


def test_a_supervised_runs_eval_generates_as_long_as_the_context_allows(tmp_path):
    config = load_run_config(
        None, name="r", output_dir=tmp_path, total_steps=1, train_batch_size=4,
        model={"config": MODEL, "device": "cpu", "dtype": "float32"},
        task="sort_digits", algorithm="sft",
    )  # fmt: skip
    section = EvalSection(name="e", kind="generate", count=2)
    scored = build_eval(section, config, load_policy(config, Given())).score(At(0, 0))
    assert all(row["tokens"] > 5 or row["finish_reason"] == "stop" for row in scored.predictions)


def test_functions_and_data_may_be_objects(config, policy):
    rows = [{"prompt": "12>", "answer": "12"}, {"prompt": "21>", "answer": "12"}]

    def of_length(completions, answer, **_):
        return [float(len(text) == len(one)) for text, one in zip(completions, answer, strict=True)]

    section = EvalSection(name="held", source="(given in Python)", metric="of_length (given in Python)")
    scored = build_eval(section, config, policy, GivenEval(source=rows, metric=of_length)).score(At(0, 0))
    assert [row["prompt"] for row in scored.predictions] == ["12>", "21>"]
    assert next(iter(scored.result.metrics)) == "of_length"


def test_data_without_a_score_is_scored_by_the_reward_of_the_run(config, policy):
    def halves(completions, **_):
        return [0.5 for _ in completions]

    def ones(completions, log_extra, **_):
        log_extra("place", list(range(len(completions))))
        return [1.0 for _ in completions]

    section = EvalSection(name="held", source="(given in Python)")
    given = GivenEval(source=[{"prompt": "12>"}, {"prompt": "21>"}], reward=[halves, ones], weights=[2.0, 3.0])
    metrics = build_eval(section, config, policy, given).score(At(0, 0)).result.metrics
    assert (metrics["reward"], metrics["place"]) == (4.0, 0.5)
    with pytest.raises(ConfigError, match="brings no score; give eval.metric"):
        build_eval(section, config, policy, GivenEval(source=[{"prompt": "12>"}]))


def test_a_reward_that_the_configuration_names_scores_evals_too(config, policy):
    changed = change_run_config(config, **{"reward.functions": [f"{__name__}:never_both"]})
    given = GivenEval(source=[{"prompt": "12>"}])
    assert "never_both" in build_eval(EvalSection(name="e"), changed, policy, given).score(At(0, 0)).result.metrics
