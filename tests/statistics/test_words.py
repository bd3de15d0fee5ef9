"""Conclusions claim what the numbers support: chance, ties, failures and single runs are named."""

import subprocess
import sys

import pytest

from proa.statistics import compare, conclusion, estimate

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
    assert "No difference seen between x and y, which is not to say that they are equal" in said


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
        "By exact (more is better) a scored: 0.5 (95 % interval 0.5 to 0.5, 2 repeats)."
    )


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
        "Cannot tell a from b: they differ by 0.25 in every pair, and so few pairs may agree by chance "
        "(all differences equal, so no interval; 2 seeds, paired)."
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
