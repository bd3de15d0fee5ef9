"""Conclusions claim what the numbers support: chance, ties, failures and single runs are named."""

import math
import subprocess
import sys

import pytest

from proa.statistics import compare, conclusion, estimate, without_metric

A, B = {0: 0.7, 1: 0.8, 2: 0.9}, {0: 0.5, 1: 0.5, 2: 0.5}


def estimates(**arms):
    return {name: None if values is None else estimate(values) for name, values in arms.items()}


def test_a_difference_that_chance_does_not_explain_is_said_with_its_interval():
    said = conclusion(
        estimates(a=A.values(), b=B.values()),
        metric="sort.exact",
        comparison=compare(A, B),
        hypothesis="A learns more.",
    )
    assert said == (
        "By sort.exact (more is better) a scored best of 2 arms: 0.8 (95 % interval 0.552 to 1.05, 3 repeats). "
        "a is better than b by 0.3 (a − b: 95 % interval 0.0516 to 0.548; 3 seeds, paired). "
        "The hypothesis was “A learns more”; this alone does not prove it."
    )


def test_less_is_better_where_the_mode_says_so():
    said = conclusion(
        estimates(a=A.values(), b=B.values()), metric="loss", mode="min", comparison=compare(B, A, mode="min")
    )
    assert said.startswith("By loss (less is better) b scored best")
    assert "a is better than b by 0.3 (a − b: 95 % interval −0.548 to −0.0516" in said


def test_no_difference_seen_is_not_called_equal():
    comparison = compare({0: 0.7, 1: 0.5}, {0: 0.5, 1: 0.6}, names=("x", "y"))
    said = conclusion(estimates(x=[0.7, 0.5], y=[0.5, 0.6]), metric="exact", comparison=comparison)
    assert "No difference seen between x and y, which is not to say that they are equal: they differ by 0.05 (x" in said


def test_a_difference_that_is_not_seen_keeps_its_sign():
    turned = compare({0: 0.5, 1: 0.6}, {0: 0.7, 1: 0.5}, names=("y", "x"))
    assert "they differ by −0.05 (y − x: 95 % interval −" in turned.words
    assert "differ by −0.25 in every pair" in compare({0: 0.25, 1: 0.5}, {0: 0.5, 1: 0.75}).words


@pytest.mark.parametrize("mode", ["max", "min"])
def test_pairs_that_contradict_the_means_are_said_to(mode):
    """a has a third run with a score far better, so the better mean; on the seeds both have b is ahead."""
    sign = 1 if mode == "max" else -1
    a, b = [sign * score for score in (0.5, 0.61, 4.1)], [sign * score for score in (0.9, 1.02)]
    pairs = dict(enumerate(a[:2])), dict(enumerate(b))
    said = conclusion(estimates(a=a, b=b), metric="m", mode=mode, comparison=compare(*pairs, mode=mode))
    assert f"a scored best of 2 arms: {'−' * (mode == 'min')}1.74 (" in said
    assert "a is worse than b by 0.405 (" in said
    assert said.endswith("; so on the seeds that both have, b is ahead.")


def test_pairs_that_agree_with_the_means_need_no_such_words():
    said = conclusion(estimates(a=A.values(), b=B.values()), metric="m", comparison=compare(A, B))
    assert "both have" not in said


def test_two_seeds_do_not_rule_out_luck_in_training():
    found = compare({0: 0.9, 1: 0.91}, {0: 0.1, 1: 0.1})
    assert found.verdict == "better"
    assert found.words.endswith("; two seeds that learned or collapsed by chance may look the same.")
    assert "two seeds" not in compare(A, B).words
    assert "two seeds" not in compare({0: 0.7, 1: 0.5}, {0: 0.5, 1: 0.6}).words


def test_without_a_metric_to_judge_by_those_that_there_are_are_named():
    assert without_metric([], hypothesis="a wins") == (
        "No success_metric is set, so no arm is called best. No run has a metric. "
        "The hypothesis was “a wins”; this alone does not prove it."
    )
    assert without_metric(["loss"]).endswith("There is loss.")
    assert without_metric([f"m{n}" for n in range(15)]).endswith("m10, m11 and 3 more.")


def test_one_run_each_says_nothing_about_chance():
    said = conclusion(estimates(a=[0.7], b=[0.5]), metric="exact")
    assert said.endswith("0.7 in one run. One run each: nothing can be said about chance.")


def test_repeats_that_were_not_compared_are_not_told_apart():
    said = conclusion(estimates(a=[0.7, 0.8], b=[0.5, 0.6]), metric="exact")
    assert "does not say that the order is more than chance" in said
    assert "One run each" not in said


def test_a_tie_is_a_tie():
    said = conclusion(estimates(c=[0.5], a=[0.5], b=[0.5]), metric="exact")
    assert said.startswith("By exact (more is better) a, b and c scored the same, 0.5, and best.")


def test_failed_arms_and_arms_without_a_value_are_named():
    said = conclusion(
        estimates(a=[0.7, None], b=[None], c=[0.5]),
        metric="exact",
        failed={"d": "cancelled", "b": "failed", "c": "failed"},
    )
    assert (
        "0.7 in one run, 1 more without a number; without a value: b (failed), d (cancelled); not whole: c (failed)."
        in said
    )


def test_no_value_is_no_winner():
    assert conclusion({"a": None}, metric="exact") == "No arm has a value of exact; without a value: a."


def test_one_arm_is_not_called_best():
    assert conclusion(estimates(a=[0.5, 0.5]), metric="exact") == (
        "By exact (more is better) a scored: 0.5 in each of 2 repeats."
    )


def test_repeats_without_a_number_are_counted_for_every_arm():
    said = conclusion(estimates(a=[0.7, 0.8, None], b=[0.5, None, math.nan], c=[0.1, 0.2]), metric="exact")
    assert "2 repeats, 1 more without a number); not whole: b (2 of 3 repeats without a number)." in said
    tied = conclusion(estimates(a=[0.5, None], b=[0.5]), metric="exact")
    assert "and best; not whole: a (1 of 2 repeats without a number)." in tied


def test_a_comparison_that_sees_nothing_does_not_flatter():
    arms = estimates(a=[0.7, 0.5], b=[0.5, 0.6], c=[0.1])
    unseen = compare({0: 0.7, 1: 0.5}, {0: 0.5, 1: 0.6})
    assert "flatters" not in conclusion(arms, metric="m", comparison=unseen)
    assert "flatters" not in conclusion(arms, metric="m", comparison=compare(B, A))


@pytest.mark.parametrize(("third", "flattered"), [({}, False), ({"c": [0.1]}, True)])
def test_the_best_of_many_was_picked_by_its_luck_too(third, flattered):
    said = conclusion(estimates(a=A.values(), b=B.values(), **third), metric="exact", comparison=compare(A, B))
    assert ("picked among 3 by these same scores, which flatters it." in said) == flattered


@pytest.mark.parametrize("hypothesis", [None, "a wins"])
def test_there_are_at_most_three_sentences(hypothesis):
    comparison = compare({0: {"x": 1.0, "y": 0.5}, 1: {"x": 1.0}}, {0: {"x": 0.0, "y": 0.6}, 2: {"x": 0.0}})
    said = conclusion(estimates(a=[1], b=[0], c=[None]), metric="m", comparison=comparison, hypothesis=hypothesis)
    assert said.count(". ") + 1 == (3 if hypothesis else 2)


def test_one_task_tells_nothing_about_others():
    comparison = compare({seed: {"x": score} for seed, score in A.items()}, {seed: {"x": 0.5} for seed in B})
    assert comparison.words.endswith(
        "3 seeds × 1 task, paired); one task: this tells about training again, not about other tasks."
    )


def test_equal_differences_have_no_interval_to_name():
    assert compare({0: 0.5, 1: 0.75}, {0: 0.25, 1: 0.5}).words == (
        "Cannot tell a from b: they differ by 0.25 in every pair, and so few seeds may agree by chance "
        "(a − b: all differences equal, so no interval; 2 seeds, paired)."
    )


def test_importing_loads_nothing_heavy():
    loaded = (
        "import sys, proa.statistics; print(sorted({'torch', 'numpy', 'scipy', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    compared = (
        "import sys, proa.statistics as s; s.compare({0: 1.0, 1: 3.0}, {0: 0, 1: 0}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", compared], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
