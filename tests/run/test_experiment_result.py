"""What an experiment came to is said of all that was planned, and claims no more than the scores support."""

import logging
import math
from types import SimpleNamespace

import pytest

from proa.data.results import ArmResult, EvalResult, ExperimentResult
from proa.errors import ProaError
from proa.record.evals import EvalRecord
from proa.run.experiment_result import summarise, task_scores


def a_run(name, *, score=None, seed=0, folder=None, status="completed", error=None, **metrics):
    """A run with `bench.exact`, perhaps, and metrics of training."""
    evals = {} if score is None else {"bench": {"exact": score, "completion_tokens": 3.0}}
    config = SimpleNamespace(seed=seed, folder=folder)
    return ArmResult(name, config, status, metrics=metrics, eval_metrics=evals, error=error)


def repeats(arm, *scores, **options):
    return [a_run(f"{arm}__s{seed}", score=score, seed=seed, **options) for seed, score in enumerate(scores)]


def arm_names(runs):
    return {run.name: run.name.partition("__")[0] for run in runs}


def summed_up(*runs, metric="bench.exact", mode="max", hypothesis=None, arm_of=None, compared=None):
    result = ExperimentResult("e")
    metadata = SimpleNamespace(success_metric=metric, mode=mode, hypothesis=hypothesis)
    summarise(result, list(runs), arm_of or arm_names(runs), SimpleNamespace(metadata=metadata), compared)
    return result


def with_predictions(run, folder, rewards, *, prompt="{task}", step=None):
    """The run with its eval and a row for each reward; several of one task in a list."""
    run.run_config.folder = folder / run.name
    run.run_config.folder.mkdir(parents=True)
    result = EvalResult("bench", metrics={"exact": 0.0, "completion_tokens": 3.0}, step=step)
    rows = [
        {"task_id": str(task), "sample": sample, "prompt": prompt.format(task=task), "reward": reward}
        for task, of_task in enumerate(rewards)
        for sample, reward in enumerate(of_task if isinstance(of_task, list) else [of_task])
    ]
    EvalRecord(run.run_config.folder).append(result, rows)
    run.evals.append(result)
    return run


# -- the best arm and its words ------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "best", "score"), [("max", "b", 0.8), ("min", "a", 0.3)])
def test_the_mode_decides_which_arm_is_best(mode, best, score):
    runs = [*repeats("a", 0.2, 0.31, 0.39), *repeats("b", 0.7, 0.8, 0.9), *repeats("c", 0.5, 0.5, 0.55)]
    result = summed_up(*runs, mode=mode)
    assert (result.best_arm, result.best_score, result.mode) == (best, pytest.approx(score), mode)
    assert f"{best} is better than c by" in result.conclusion  # the next best, not the last
    assert result.compare("a", "b").verdict == ("worse" if mode == "max" else "better")


def test_the_hypothesis_is_repeated():
    assert "“a wins”" in summed_up(*repeats("a", 0.5, 0.6), hypothesis="a wins").conclusion
    assert "“a wins”" in summed_up(a_run("a", loss=1.0), metric=None, hypothesis="a wins").conclusion


def test_the_score_of_the_one_eval_is_what_counts_if_nobody_said():
    assert summed_up(*repeats("a", 0.5, 0.6), metric=None).success_metric == "bench.exact"


def test_what_a_run_scored_before_it_failed_counts_nowhere():
    b = [*repeats("b", 0.1, 0.15), a_run("b__s2", score=9.0, seed=2, status="failed")]
    result = summed_up(*repeats("a", 0.5, 0.6, 0.7), *b)
    assert result.groups["b"].metrics["bench.exact"].mean == pytest.approx(0.125)
    assert result.groups["b"].metrics["bench.exact"].missing == 1
    assert result.compare("a", "b").seeds == 2
    assert result.best_arm == "a"


def test_pairs_are_of_the_same_seed():
    a = [a_run("a__0", score=0.5, seed=5), a_run("a__1", score=0.9, seed=6)]
    b = [a_run("b__0", score=0.4, seed=6), a_run("b__1", score=0.1, seed=7)]
    found = summed_up(*a, *b).compare("a", "b")
    assert (found.seeds, found.difference) == (1, 0.5)


def test_pairs_that_contradict_the_means_are_said_to():
    result = summed_up(*repeats("a", 0.5, 0.6, 4.0), *repeats("b", 0.9, 1.1))
    assert result.best_arm == "a"
    assert result.conclusion.endswith("; so on the seeds that both have, b is ahead.")


# -- stages --------------------------------------------------------------------------------------------

LAST = ["a_stage1", "b_stage1"]


def staged(a, b, **options):
    """Two arms of two stages, one run each."""
    scores = {"a_stage0": 0.9, "a_stage1": a, "b_stage0": 0.95, "b_stage1": b}
    return summed_up(*(a_run(name, score=score) for name, score in scores.items()), compared=LAST, **options)


def test_stages_do_not_stand_against_each_other():
    result = staged(0.3, 0.5)
    assert (result.best_arm, result.best_score) == ("b_stage1", 0.5)
    assert result.conclusion.startswith(
        "By bench.exact (more is better) b_stage1 scored best of 2 arms: 0.5 in one run."
    )
    assert result.conclusion.endswith(" Each arm is judged by its last stage.")
    assert list(result.groups) == ["a_stage0", "a_stage1", "b_stage0", "b_stage1"]


def test_the_stages_of_a_single_arm_are_no_contest():
    result = summed_up(a_run("a_stage0", score=0.9), a_run("a_stage1", score=0.5), compared=["a_stage1"])
    assert result.best_arm == "a_stage1"
    assert result.conclusion == (
        "By bench.exact (more is better) a_stage1 scored: 0.5 in one run. Each arm is judged by its last stage."
    )


def test_a_chain_that_ended_early_leaves_its_arm_without_a_value():
    runs = [a_run("a_stage0", status="failed"), a_run("a_stage1", status="cancelled", error="not run: a_stage0 failed")]
    result = summed_up(*runs, a_run("b_stage0", score=0.9), a_run("b_stage1", score=0.5), compared=LAST)
    assert result.best_arm == "b_stage1"
    assert "; without a value: a_stage1 (not run)." in result.conclusion


def test_arms_without_stages_are_not_said_to_have_any():
    assert "stage" not in summed_up(*repeats("a", 0.5), *repeats("b", 0.7), compared=["a", "b"]).conclusion


# -- numbers that are none -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_missing(value):
    result = summed_up(*repeats("a", 0.5, value, 0.7), *repeats("b", 0.1, 0.2, 0.4), *repeats("c", value, value))
    assert result.best_arm == "a"
    assert result.compare("a", "b").seeds == 2
    assert result.compare("a", "c").verdict == "cannot tell"
    assert "2 repeats, 1 more without a number); without a value: c; not whole: a (1 of 3 repeats" in result.conclusion


def test_no_number_at_all_is_no_best_arm():
    result = summed_up(*repeats("a", math.nan), *repeats("b", math.inf))
    assert (result.best_arm, result.best_score) == (None, None)
    assert result.conclusion == "No arm has a value of bench.exact; without a value: a, b."


# -- what is missing -----------------------------------------------------------------------------------


def test_arms_that_did_not_come_to_be_run_are_named_with_what_became_of_them():
    runs = [
        a_run("a", score=0.5),
        a_run("b", status="failed", error="boom"),
        a_run("c", status="cancelled"),
        a_run("d", status="cancelled", error="not run: b failed"),
    ]
    result = summed_up(*runs, arm_of={name: name for name in "abcde"})
    assert "; without a value: b (failed), c (cancelled), d (not run), e (not run)." in result.conclusion
    assert list(result.groups) == list("abcde")
    assert result.groups["e"].runs == ["e"]


def test_missing_repeats_are_counted_for_every_arm():
    runs = [*repeats("a", 0.5, 0.6, 0.7), *repeats("b", 0.1, 0.2), *repeats("c", 0.3)]
    runs += [a_run("b__s2", seed=2, status="failed"), a_run("c__s1", seed=1, status="failed")]
    planned = {f"{arm}__s{seed}": arm for arm in "abcd" for seed in range(3)}
    result = summed_up(*runs, arm_of=planned)
    assert (
        "; without a value: d (3 of 3 repeats not run); "
        "not whole: b (1 of 3 repeats failed), c (1 of 3 repeats failed, 1 not run)."
    ) in result.conclusion
    assert result.groups["c"].metrics["bench.exact"].missing == 2


def test_a_whole_experiment_lacks_nothing():
    said = summed_up(*repeats("a", 0.5, 0.6), *repeats("b", 0.1, 0.2)).conclusion
    assert "not whole" not in said
    assert "without" not in said


# -- no metric -----------------------------------------------------------------------------------------


def test_without_a_success_metric_the_conclusion_names_those_that_there_are():
    runs = [a_run("a", loss=0.5, reward=1.0), a_run("b", loss=0.4), a_run("c", status="failed")]
    result = summed_up(*runs, metric=None)
    assert result.conclusion == (
        "No success_metric is set, so no arm is called best; not whole: c (failed). There are loss and reward."
    )


@pytest.mark.parametrize("metric", [None, "bench.exact"])
def test_an_experiment_whose_arms_all_failed_has_a_conclusion(metric):
    result = summed_up(a_run("a", status="failed"), a_run("b", status="cancelled"), metric=metric)
    assert "a (failed), b (cancelled)" in result.conclusion


def test_a_success_metric_that_no_run_has_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        result = summed_up(*repeats("a", 0.5, 0.6), metric="bench.exat")
    assert "no run has a metric 'bench.exat'; did you mean 'bench.exact'?" in caplog.text
    assert result.conclusion.startswith("No arm has a value of bench.exat")
    caplog.clear()
    summed_up(*repeats("a", 0.5, 0.6))
    assert not caplog.text


# -- comparing by hand ---------------------------------------------------------------------------------


def test_another_metric_may_have_another_mode():
    runs = [a_run(f"{arm}__s{seed}", score=0.5, seed=seed, loss=loss + 0.01 * seed * (arm == "a"))
            for arm, loss in (("a", 0.1), ("b", 0.9)) for seed in range(3)]  # fmt: skip
    result = summed_up(*runs)
    assert result.compare("a", "b", "loss").verdict == "worse"
    assert result.compare("a", "b", "loss", mode="min").verdict == "better"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "bb"), "no arm is called 'bb'; did you mean 'b'"),
        (("a", "b", "los"), "no run has a metric 'los'; did you mean 'loss'"),
    ],
)
def test_a_name_that_is_not_there_is_refused(arguments, said):
    result = summed_up(a_run("a", score=0.5, loss=1.0), a_run("b", score=0.5))
    with pytest.raises(ProaError, match=said):
        result.compare(*arguments)


def test_without_any_metric_comparing_asks_for_one():
    with pytest.raises(ProaError, match="say by which metric"):
        summed_up(a_run("a", loss=1.0), a_run("b", loss=0.5), metric=None).compare("a", "b")
    with pytest.raises(ProaError, match="max"):
        summed_up(a_run("a", score=1.0), a_run("b", score=0.5)).compare("a", "b", mode="most")


# -- tasks ---------------------------------------------------------------------------------------------


def test_the_same_tasks_are_paired(tmp_path):
    a = [with_predictions(run, tmp_path, [1, 1, 0.5]) for run in repeats("a", 0.8, 0.8)]
    b = [with_predictions(run, tmp_path, [0, 0.5, 0.25]) for run in repeats("b", 0.2, 0.2)]
    found = summed_up(*a, *b).compare("a", "b")
    assert (found.seeds, found.tasks, found.own_tasks) == (2, 3, False)
    assert "2 seeds × 3 tasks" in summed_up(*a, *b).conclusion


def test_tasks_that_each_seed_drew_for_itself_are_paired_within_it(tmp_path):
    runs = [
        with_predictions(run, tmp_path, [1, 0.5, run.run_config.seed / 8], prompt=f"{run.run_config.seed}: {{task}}")
        for arm in "ab"
        for run in repeats(arm, 0.8, 0.7, 0.6)
    ]
    found = summed_up(*runs).compare("a", "b")
    assert (found.seeds, found.tasks, found.pairs, found.own_tasks) == (3, 9, 9, True)


def test_other_prompts_under_the_same_ids_are_not_paired(tmp_path):
    sort = [with_predictions(run, tmp_path, [1] * 4, prompt="sort {task}") for run in repeats("sort", 0.8, 0.9)]
    reverse = [with_predictions(run, tmp_path, [0] * 4, prompt="turn {task}") for run in repeats("turn", 0.1, 0.3)]
    result = summed_up(*sort, *reverse)
    assert (result.compare("sort", "turn").tasks, result.compare("sort", "turn").seeds) == (None, 2)
    assert result.conclusion.endswith("; the arms were scored on different tasks.")


def test_predictions_that_one_arm_lost_leave_the_scores_of_seeds(tmp_path):
    a = [with_predictions(run, tmp_path, [1, 0]) for run in repeats("a", 0.8, 0.9)]
    result = summed_up(*a, *repeats("b", 0.1, 0.3))
    assert result.compare("a", "b").tasks is None
    assert result.compare("b", "a").seeds == 2


def test_predictions_that_cannot_be_read_leave_the_scores_of_seeds(tmp_path, caplog):
    run = with_predictions(a_run("a"), tmp_path, [1, 0])
    (tmp_path / "a/evals/bench/final.jsonl").write_text("{")
    assert task_scores(run, "bench.exact") is None
    assert "a is compared without the scores of tasks" in caplog.text
    (tmp_path / "a/evals/bench/final.jsonl").unlink()
    assert task_scores(run, "bench.exact") is None


def test_only_the_main_metric_has_scores_of_tasks(tmp_path):
    run = with_predictions(a_run("a"), tmp_path, [1, [0, None, 1, math.nan], [None]])
    assert list(task_scores(run, "bench.exact").values()) == [1, 0.5, None]
    assert task_scores(run, "bench.completion_tokens") is None
    assert task_scores(run, "other.exact") is None


def test_the_last_eval_of_a_benchmark_counts(tmp_path):
    run = with_predictions(a_run("a"), tmp_path / "first", [0.25], step=0)
    with_predictions(run, tmp_path / "last", [0.75], step=1)
    EvalRecord(run.run_config.folder).append(run.evals[0], [{"task_id": "0", "prompt": "0", "reward": 0.25}])
    assert list(task_scores(run, "bench.exact").values()) == [0.75]
