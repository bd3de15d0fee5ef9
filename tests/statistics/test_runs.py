"""Runs are compared by task where both arms were scored on the same tasks, else by seed."""

import math

import pytest

from proa.statistics import ArmScores, compare_runs, task_means

X, Y = {"x": 1.0, "y": 0.0, "z": 0.5}, {"x": 0.0, "y": 0.0, "z": 0.5}


def test_scores_of_tasks_in_both_arms_are_compared_by_task():
    found = compare_runs(ArmScores.collect([(0, 0.5, X)]), ArmScores.collect([(0, 0.2, Y)]))
    assert (found.seeds, found.tasks, found.difference) == (1, 3, pytest.approx(1 / 3))


@pytest.mark.parametrize("turned", [False, True])
def test_scores_of_tasks_in_one_arm_alone_are_compared_by_seed(turned):
    arms = [ArmScores.collect([(0, 0.5, X), (1, 0.6, X)]), ArmScores.collect([(0, 0.2, Y), (1, 0.4, None)])]
    found = compare_runs(*(reversed(arms) if turned else arms))
    assert (found.seeds, found.tasks, abs(found.difference)) == (2, None, pytest.approx(0.25))
    assert "different tasks" not in found.words


def test_different_tasks_are_not_paired_and_the_words_say_so():
    other = {f"other {task}": score for task, score in Y.items()}
    found = compare_runs(
        ArmScores.collect([(0, 0.5, X), (1, 0.7, X)]), ArmScores.collect([(0, 0.2, other), (1, 0.1, other)])
    )
    assert (found.seeds, found.tasks, found.difference) == (2, None, pytest.approx(0.45))
    assert found.words.endswith("; the arms were scored on different tasks.")


@pytest.mark.parametrize(("common", "tasks"), [(2, 2), (1, None)])
def test_half_of_the_tasks_in_common_are_enough(common, tasks):
    one = {str(task): float(task) for task in range(4)}
    other = {str(task) if task < common else f"other {task}": 0.0 for task in range(4)}
    assert compare_runs(ArmScores.collect([(0, 1.5, one)]), ArmScores.collect([(0, 0.0, other)])).tasks == tasks


def test_tasks_that_no_two_seeds_have_alike_still_leave_the_seeds():
    """Two seeds share their tasks, the third has others: neither a rectangle nor tasks of each seed's own."""
    far = {f"far {task}": score for task, score in X.items()}
    arms = [ArmScores.collect([(0, 0.5, X), (1, 0.6, X), (2, score, far)]) for score in (0.8, 0.7)]
    found = compare_runs(*arms)
    assert (found.seeds, found.tasks, found.difference) == (3, None, pytest.approx(0.1 / 3))
    assert "different tasks" not in found.words


def test_arms_without_a_seed_in_common_cannot_be_told_apart():
    found = compare_runs(ArmScores.collect([(0, 0.5, X)]), ArmScores.collect([(1, 0.5, X)]))
    assert (found.verdict, found.pairs) == ("cannot tell", 0)
    assert "different tasks" not in found.words
    assert compare_runs(ArmScores.collect([]), ArmScores.collect([(1, 0.5, X)])).verdict == "cannot tell"


def test_less_is_better_where_the_mode_says_so():
    one, other = ArmScores({0: 1.0, 1: 1.1, 2: 1.0}), ArmScores({0: 0.0, 1: 0.0, 2: 0.0})
    assert compare_runs(one, other, mode="min", names=("one", "other")).words.startswith("one is worse than other")


def row(task, prompt, reward):
    return {"task_id": task, "prompt": prompt, "reward": reward}


def test_a_task_is_its_id_and_its_prompt():
    sort, reverse = (task_means([row("0", f"{what} 21", 1.0)]) for what in ("sort", "reverse"))
    assert sort.keys().isdisjoint(reverse)
    assert task_means([row("0", "sort 21", 0.0)]).keys() == sort.keys()
    assert task_means([row("1", "sort 21", 0.0)]).keys().isdisjoint(sort)
    messages = [{"role": "user", "content": "sort 21"}]
    assert task_means([row("0", messages, 0.5)]).keys().isdisjoint(sort)


def test_a_completion_without_a_reward_is_no_zero():
    rows = [row("0", "x", 1.0), row("0", "x", None), row("0", "x", math.nan), row("1", "x", None)]
    assert list(task_means(rows).values()) == [1.0, None]
