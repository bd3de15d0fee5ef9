"""pass@k equals its brute force; errors of scoring are counted and averaged nowhere."""

import itertools
import math

import pytest

from proa.errors import SettingError
from proa.statistics import mean_at_k, pass_at_k, summarise


def rows_of(*rewards_of_tasks, **columns):
    return [
        {"task_id": task, "reward": reward, "correct": None if reward is None else reward >= 1, **columns}
        for task, rewards in enumerate(rewards_of_tasks)
        for reward in rewards
    ]


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_draws_with_a_success(n):
    for correct in range(n + 1):
        for k in range(1, n + 1):
            draws = list(itertools.combinations([True] * correct + [False] * (n - correct), k))
            assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws), rel=1e-15)


def test_pass_at_k_keeps_its_digits_for_many_completions():
    assert pass_at_k(10_000, 1, 1) == 1e-4
    assert pass_at_k(10_000, 3, 5_000) == pytest.approx(1 - (5000 * 4999 * 4998) / (10000 * 9999 * 9998), rel=1e-14)


@pytest.mark.parametrize("n", range(1, 6))
def test_mean_at_k_is_the_mean_over_all_draws(n):
    rewards = [0.5, 1.0, -2.0, 0.25, 8.0][:n]
    for k in range(1, n + 1):
        draws = [sum(draw) / k for draw in itertools.combinations(rewards, k)]
        assert mean_at_k(rewards, k) == pytest.approx(sum(draws) / len(draws), rel=1e-14)


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0)])
def test_what_cannot_be_drawn_is_refused(n, correct, k):
    with pytest.raises(SettingError):
        pass_at_k(n, correct, k)


def test_metrics_are_means_over_what_was_scored():
    metrics, breakdowns = summarise(rows_of([1, 0.5], [0, None], [math.nan]))
    assert metrics == {"n": 3, "errors": 2, "tasks": 3, "mean_reward": 0.5, "pass_rate": pytest.approx(1 / 3)}
    assert breakdowns == {}


def test_an_error_is_no_failure():
    """Even where its row says not correct."""
    rows = rows_of([1, 1])
    rows.append({"task_id": 0, "reward": None, "correct": False})
    metrics, _ = summarise(rows, k=(1, 2))
    assert (metrics["pass_rate"], metrics["pass@1"], metrics["pass@2"], metrics["errors"]) == (1, 1, 1, 1)


def test_pass_at_k_is_the_mean_over_tasks_that_have_k():
    metrics, _ = summarise(rows_of([1, 0, 0, 0], [0, 0, 3], [1]), k=[1, 2])
    assert metrics["pass@1"] == pytest.approx((1 / 4 + 1 / 3 + 1) / 3)
    assert metrics["pass@2"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert metrics["mean@2"] == pytest.approx((1 / 4 + 1) / 2)
    assert (metrics["pass@1_tasks"], metrics["pass@2_tasks"]) == (3, 2)


def test_more_completions_than_any_task_has_are_refused():
    with pytest.raises(SettingError, match="at most 2"):
        summarise(rows_of([1, 0]), k=3)


def test_breakdowns_count_rows_by_value():
    rows = rows_of([1, 0], level=3) + rows_of([None, 1], level="hard") + rows_of([None])
    _, breakdowns = summarise(rows, keys=["level"])
    assert breakdowns["level"] == {
        "3": {"n": 2, "mean_reward": 0.5, "pass_rate": 0.5},
        "hard": {"n": 1, "mean_reward": 1.0, "pass_rate": 1.0},
        "(none)": {
            "n": 0,
            "mean_reward": pytest.approx(math.nan, nan_ok=True),
            "pass_rate": pytest.approx(math.nan, nan_ok=True),
        },
    }


def test_a_row_counts_under_each_of_its_tags_once():
    rows = rows_of([1], tags=["x", "y", "x"]) + rows_of([0], tags=("y",)) + rows_of([0], tags=[])
    _, breakdowns = summarise(rows, keys=["tags"])
    assert {tag: counts["n"] for tag, counts in breakdowns["tags"].items()} == {"x": 1, "y": 2, "(none)": 1}
    assert breakdowns["tags"]["y"]["mean_reward"] == 0.5


def test_rows_that_nobody_judged_have_a_reward_and_no_pass_rate():
    metrics, _ = summarise([{"task_id": 0, "reward": 0.5}, {"task_id": 0, "reward": 1.5, "correct": None}], k=1)
    assert metrics["mean_reward"] == 1.0
    assert math.isnan(metrics["pass_rate"])
    assert math.isnan(metrics["pass@1"])
    assert metrics["pass@1_tasks"] == 0


def test_no_rows_give_nothing_to_average():
    metrics, breakdowns = summarise([], k=1, keys=["level"])
    assert (metrics["n"], metrics["tasks"], math.isnan(metrics["mean_reward"])) == (0, 0, True)
    assert breakdowns == {"level": {}}


def test_a_misspelt_key_is_refused_with_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'level'"):
        summarise(rows_of([1], level=1), keys=["levl"])


def test_a_row_without_reward_or_task_is_refused():
    with pytest.raises(SettingError, match="no 'reward': it has task_id, rewards"):
        summarise([{"task_id": 1, "rewards": 1}])
    with pytest.raises(SettingError, match="'task_id'"):
        summarise([{"reward": 1}])
