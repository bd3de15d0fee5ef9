"""Comparisons use pairs only, equal scipy's or the table worked by hand, and say what they cannot tell."""

import math
import time

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.errors import SettingError
from proa.statistics import compare
from proa.statistics.pairing import pair

T1, T2, T3 = 12.706204736174694, 4.302652729749462, 3.182446305283708  # Student's t at 97.5 %


def arm(table):
    """`{seed: {task: score}}` of rows of scores."""
    return {seed: {f"t{task}": float(score) for task, score in enumerate(row)} for seed, row in enumerate(table)}


def zeros(table):
    return arm([[0.0] * len(row) for row in table])


def against_zero(table, **options):
    return compare(arm(table), zeros(table), **options)


grids = st.integers(1, 4).flatmap(
    lambda tasks: st.lists(st.lists(st.integers(-8, 8), min_size=tasks, max_size=tasks), min_size=1, max_size=4)
)


def test_seeds_alone_give_scipys_paired_t_interval():
    a, b = {0: 0.71, 1: 0.80, 2: 0.93, 3: 0.64}, {0: 0.52, 1: 0.55, 2: 0.51, 3: 0.66}
    oracle = scipy.stats.ttest_rel(list(a.values()), list(b.values())).confidence_interval(0.9)
    found = compare(a, b, level=0.9)
    assert (found.low, found.high) == (pytest.approx(oracle.low, rel=1e-12), pytest.approx(oracle.high, rel=1e-12))
    assert (found.seeds, found.tasks, found.pairs, found.chance) == (4, None, 4, "training")
    assert (found.a, found.b) == (pytest.approx(0.77), pytest.approx(0.56))


def test_one_seed_gives_scipys_paired_t_interval_over_tasks():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 20))
    oracle = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    found = compare(arm([a]), arm([b]))
    assert (found.low, found.high) == (pytest.approx(oracle.low, rel=1e-12), pytest.approx(oracle.high, rel=1e-12))
    assert (found.seeds, found.tasks, found.chance) == (1, 20, "tasks")
    assert "not about training again" in found.words


@pytest.mark.parametrize(
    ("table", "difference", "half"),
    [
        ([[1, 2, 3], [3, 4, 5]], 3, math.sqrt((T1**2 * 6 + T2**2 * 2) / 6)),  # additive: A 6, B 2, E 0
        ([[0, 2], [0, 0]], 0.5, T1 / 2),  # A 1, B 1, E 1: tasks differ by no more than noise
        ([[0, 3, 6], [6, 6, 15]], 6, math.sqrt((T1**2 * 54 + T2**2 * 27) / 6)),  # A 54, B 31.5, E 4.5
        ([[4, 0, 1, 3]], 2, T3 * math.sqrt(10 / 3 / 4)),
    ],
)
def test_the_interval_is_the_one_worked_by_hand(table, difference, half):
    found = against_zero(table)
    assert found.difference == difference
    assert found.low == pytest.approx(difference - half, rel=1e-12)
    assert found.high == pytest.approx(difference + half, rel=1e-12)


def test_seeds_that_agree_by_the_grid_of_their_scores_are_not_taken_for_certain():
    """Both seeds have one of four right, B < E: all that is left is t² · (1/4)²/12 / 2."""
    found = against_zero([[1, 0, 0, 0], [0, 1, 0, 0]])
    assert found.high - found.difference == pytest.approx(T1 * math.sqrt(1 / 16 / 12 / 2), rel=1e-12)


def test_the_grid_is_that_of_the_smallest_step():
    """A is 0, so (1/2)²/(12·4) of the grid; B 25/24, E 3/4."""
    found = against_zero([[2, 0.5, 0, 0], [0.5, 2, 0, 0]])
    half = math.sqrt((T1**2 / 4 / 48 + T3**2 * 7 / 24) / 8)
    assert found.high - found.difference == pytest.approx(half, rel=1e-12)


def test_rounding_is_no_step_of_the_grid():
    a, b = arm([[0.5, 0, 0, 0], [0, 0.3, 0, 0]]), arm([[0.3, 0, 0, 0], [0, 0.1, 0, 0]])
    found = compare(a, b)  # 0.2 and 0.19999999999999998
    assert found.high - found.difference == pytest.approx(0.2 * T1 * math.sqrt(1 / 16 / 12 / 2), rel=1e-9)


def test_scores_of_seeds_alone_have_no_grid():
    a = dict.fromkeys(range(20), 0.0) | {7: 1.0}
    oracle = scipy.stats.ttest_rel(list(a.values()), [0.0] * 20).confidence_interval(0.95)
    assert compare(a, dict.fromkeys(range(20), 0.0)).high == pytest.approx(oracle.high, rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(grids, grids, st.sampled_from(["max", "min"]))
def test_swapping_the_arms_flips_the_sign(one, other, mode):
    a, b = arm(one), arm(other)
    there, back = compare(a, b, mode=mode, resamples=20), compare(b, a, mode=mode, resamples=20)
    opposite = {"better": "worse", "worse": "better"}
    assert back.verdict == opposite.get(there.verdict, there.verdict)
    assert back.missing == there.missing
    if there.difference is not None:
        assert back.difference == -there.difference
    if there.low is not None:
        assert (back.low, back.high) == (-there.high, -there.low)
        assert back.share == pytest.approx(1 - there.share)


@settings(deadline=None, max_examples=60)
@given(grids, st.sampled_from([0.5, 100.0, -3.0]))
def test_a_constant_added_to_both_arms_changes_nothing(table, constant):
    there = against_zero(table, resamples=20)
    moved = compare(
        arm([[score + constant for score in row] for row in table]),
        arm([[constant] * len(row) for row in table]),
        resamples=20,
    )
    assert (moved.difference, moved.low, moved.high, moved.verdict, moved.share) == (
        there.difference,
        there.low,
        there.high,
        there.verdict,
        there.share,
    )


def test_the_order_of_the_dicts_changes_no_bit():
    generator = np.random.default_rng(1)
    a, b = arm(generator.normal(size=(3, 7))), arm(generator.normal(size=(3, 7)))

    def turned(scores):
        return {seed: dict(reversed(tasks.items())) for seed, tasks in reversed(scores.items())}

    assert compare(a, b) == compare(turned(a), turned(b)) == compare(a, turned(b))
    table = [[10.0 * seed + task for task in range(7)] for seed in range(3)]
    assert pair(turned(arm(table)), b).a.tolist() == table


def test_max_and_min_turn_the_verdict_and_not_the_difference():
    most, least = against_zero([[3, 3.1, 2.9]]), against_zero([[3, 3.1, 2.9]], mode="min")
    assert (most.verdict, least.verdict) == ("better", "worse")
    assert most.difference == least.difference == pytest.approx(3)
    assert (most.share, least.share) == (1.0, 0.0)


def test_an_interval_with_zero_is_no_difference_seen():
    found = against_zero([[3, -3, 2, -1]])
    assert found.low < 0 < found.high
    assert found.verdict == "no difference seen"
    assert "not to say that they are equal" in found.words


def test_a_score_without_partner_is_left_out_and_counted():
    a, b = arm([[1, 2, 3, 9], [2, 3, 5, 9], [9, 9, 9, 9]]), zeros([[0] * 4] * 2)
    del b[1]["t3"]  # the task leaves the seed that has it too
    found = compare(a, b)
    assert (found.seeds, found.tasks, found.missing) == (2, 3, 2 + 4)
    assert found.difference == pytest.approx(16 / 6)
    assert "6 scores left out" in found.words


@pytest.mark.parametrize("hole", [None, math.nan, math.inf])
def test_what_is_no_number_is_no_score(hole):
    a, b = arm([[1, 2, 3, 50]]), zeros([[0] * 4])
    a[0]["t3"] = hole
    found = compare(a, b)
    assert (found.difference, found.tasks, found.missing) == (2, 3, 1)


def test_a_repeat_that_broke_off_does_not_cost_the_others_their_tasks():
    a, b = arm([[1, 2, 3, 4, 5], [2, 2, 3, 4, 4], [7, 7]]), zeros([[0] * 5] * 3)
    found = compare(a, b)
    assert (found.seeds, found.tasks, found.missing) == (2, 5, 5)
    assert compare(a | {2: None}, b) == found  # a failed repeat has no scores at all


def test_a_seed_with_half_of_the_tasks_stays():
    a, b = arm([[1, 2, 3, 4], [2, 2]]), zeros([[0] * 4] * 2)
    found = compare(a, b)
    assert (found.seeds, found.tasks) == (2, 2)


@pytest.mark.parametrize(
    ("a", "b"),
    [({0: 1.0}, {1: 1.0}), ({}, {0: 1.0}), ({0: {"x": 1.0}}, {0: {"y": 1.0}}), ({0: None}, {0: 2.0}), ({}, {})],
)
def test_arms_without_a_pair_cannot_be_told_apart(a, b):
    found = compare(a, b)
    assert (found.verdict, found.difference, found.low, found.share, found.pairs) == (
        "cannot tell",
        None,
        None,
        None,
        0,
    )
    assert found.words.startswith("Cannot tell")


@pytest.mark.parametrize(("a", "b"), [({0: 1.0}, {0: 0.0}), ({0: {"x": 1.0}}, {0: {"x": 0.0}})])
def test_one_score_each_says_nothing_about_chance(a, b):
    found = compare(a, b)
    assert (found.verdict, found.difference, found.low, found.chance) == ("cannot tell", 1.0, None, "nothing")
    assert found.method == "none"
    assert compare(a, a).verdict == "cannot tell"
    assert "nothing can be said about chance" in found.words


@pytest.mark.parametrize(("pairs", "verdict"), [(2, "cannot tell"), (5, "cannot tell"), (6, "better"), (300, "better")])
def test_equal_differences_are_judged_by_their_number(pairs, verdict):
    """A sign test with all of one sign has p = 2^(1 − n): 1/16 for five, 1/32 for six."""
    by_task, by_seed = (
        against_zero([[0.2] * pairs]),
        compare(dict.fromkeys(range(pairs), 0.2), dict.fromkeys(range(pairs), 0)),
    )
    assert by_task.verdict == by_seed.verdict == verdict
    assert by_task.low is by_task.high is by_task.share is None


@pytest.mark.parametrize(("seeds", "verdict"), [(2, "cannot tell"), (5, "cannot tell"), (6, "better")])
def test_tasks_are_no_repeats_of_training(seeds, verdict):
    """Both arms may learn or collapse as a whole: 20 tasks that agree are one seed that agrees."""
    found = against_zero([[1.0] * 20] * seeds)
    assert found.verdict == verdict
    if seeds < 6:
        assert "so few seeds may agree by chance" in found.words
    assert "so few tasks may agree by chance" in against_zero([[1.0] * 5]).words


def own(table):
    """As `arm`, with other tasks in each seed."""
    return {seed: {f"{seed}/{task}": float(score) for task, score in enumerate(row)} for seed, row in enumerate(table)}


def test_tasks_of_each_seeds_own_are_paired_within_the_seed():
    """A seed's mean difference varies with its training and its tasks: Student's t over seeds tells about both."""
    generator = np.random.default_rng(4)
    a, b = generator.normal(size=(2, 3, 8))
    b[2, 0] = math.nan  # its partner goes too
    found = compare(own(a), own(b))
    means = [(row_a - row_b)[~np.isnan(row_b)].mean() for row_a, row_b in zip(a, b, strict=True)]
    oracle = scipy.stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(oracle.low, rel=1e-12), pytest.approx(oracle.high, rel=1e-12))
    assert (found.seeds, found.tasks, found.pairs, found.missing, found.own_tasks) == (3, 23, 23, 1, True)
    assert found.chance == "training and tasks"
    assert found.method == "paired t-interval over seeds, each with its own tasks"
    assert "3 seeds, 23 tasks, other ones in each, paired)" in found.words


def test_a_seed_with_few_tasks_of_its_own_does_not_count_as_a_whole_one():
    a = own([[1, 2, 3, 4, 6], [2, 2, 3, 4, 4], [9, 9]])
    found = compare(a, own([[0] * 5] * 3))
    assert (found.seeds, found.tasks, found.missing) == (2, 10, 5)
    alone = compare(own([[1, 2, 3, 4, 6], [9, 9]]), own([[0] * 5] * 2))
    assert (alone.seeds, alone.tasks, alone.own_tasks, alone.chance) == (1, 5, False, "tasks")


def test_some_tasks_in_common_by_chance_leave_the_others_each_seeds_own():
    a = {seed: {task: float(task % 3 + seed) for task in range(7 * seed, 7 * seed + 8)} for seed in range(3)}
    found = compare(a, {seed: dict.fromkeys(tasks, 0.0) for seed, tasks in a.items()})
    assert (found.own_tasks, found.seeds, found.tasks, found.pairs) == (True, 3, 22, 24)


def test_holes_do_not_make_tasks_each_seeds_own():
    table = np.random.default_rng(5).normal(size=(3, 40))
    a = arm(table)
    for seed in range(3):
        for task in range(seed, 40, 4):
            a[seed][f"t{task}"] = None
    found = compare(a, zeros(table))
    assert (found.own_tasks, found.seeds, found.tasks) == (False, 3, 10)


def test_rounding_is_no_spread():
    found = compare({0: 0.5, 1: 0.3}, {0: 0.3, 1: 0.1})  # 0.2 and 0.19999999999999998
    assert (found.verdict, found.low) == ("cannot tell", None)


def test_arms_that_score_the_same_everywhere_show_no_difference():
    found = against_zero([[0, 0, 0], [0, 0, 0]])
    assert (found.verdict, found.difference, found.low) == ("no difference seen", 0.0, None)
    assert found.method.startswith("sign test")
    assert compare({0: 0.1 + 0.2, 1: 0.1 + 0.2}, {0: 0.3, 1: 0.3}).verdict == "no difference seen"


def test_the_share_is_that_of_all_resamples():
    """Two tasks, one seed: of the four draws one has only the task that a lost. With a tie counted half."""
    assert against_zero([[3, -1]], resamples=20_000).share == pytest.approx(3 / 4, abs=0.02)
    assert against_zero([[1, -1]], resamples=20_000).share == pytest.approx(1 / 2, abs=0.02)
    assert against_zero([[3], [-1]], resamples=20_000).share == pytest.approx(3 / 4, abs=0.02)
    # Seeds and tasks crossed: 3/4 of the draws have the good task, within each 3/4 the good seed.
    crossed = np.outer([3, -1], [1, 0]) - np.outer([1, 1], [0, 0.1])
    assert against_zero(crossed, resamples=20_000).share == pytest.approx(9 / 16, abs=0.02)


def test_the_share_follows_from_its_seed():
    table = np.random.default_rng(2).normal(size=(3, 30))
    assert against_zero(table).share == against_zero(table).share
    assert len({against_zero(table, seed=seed, resamples=300).share for seed in range(5)}) > 1


def test_blocks_of_resamples_count_them_all():
    """A block holds 2,000,000 draws: 150 resamples of 20,000 tasks are two."""
    table = [[1.0, 1.5] * 10_000]
    assert against_zero(table, resamples=150).share == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [({"mode": "mx"}, "did you mean 'max'"), ({"level": 95}, "0.95"), ({"resamples": 0}, "resamples")],
)
def test_a_wrong_setting_is_refused(options, said):
    with pytest.raises(SettingError, match=said):
        compare({0: 1.0}, {0: 0.0}, **options)


def test_two_forms_of_scores_are_refused():
    with pytest.raises(SettingError, match="not both"):
        compare({0: {"x": 1.0}}, {0: 1.0})


def test_the_words_name_the_arms_and_the_interval():
    found = compare({0: 0.7, 1: 0.8, 2: 0.9}, {0: 0.5, 1: 0.5, 2: 0.5}, names=("new", "old"))
    assert found.words == "new is better than old by 0.3 (new − old: 95 % interval 0.0516 to 0.548; 3 seeds, paired)."


def test_ten_seeds_of_two_thousand_tasks_are_quick():
    a, b = (arm(np.random.default_rng(seed).normal(size=(10, 2000))) for seed in (0, 1))
    compare({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.5})  # scipy is imported once
    started = time.perf_counter()
    compare(a, b)
    assert time.perf_counter() - started < 2  # 0.2 s on an idle core
