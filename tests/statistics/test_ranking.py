"""The best arm is the one with the best mean; equals are all named, arms without a value are none of them."""

import math

import pytest

from proa.errors import SettingError
from proa.statistics import Best, Estimate, estimate, rank_arms


def mean(value):
    return Estimate(value, None, None, 1)


def test_the_mode_decides_which_mean_is_best():
    arms = {"a": mean(0.2), "b": mean(0.9), "c": mean(0.5)}
    assert rank_arms(arms) == Best(("b",), 0.9, ("b", "c", "a"), ())
    assert rank_arms(arms, "min") == Best(("a",), 0.2, ("a", "c", "b"), ())
    assert rank_arms(arms).arm == "b"


def test_a_tie_names_every_arm_and_picks_none():
    best = rank_arms({"z": mean(0.1 + 0.2), "a": mean(0.3), "m": mean(0.2)})
    assert best.arms == ("a", "z")
    assert best.arm is None
    assert best.score == pytest.approx(0.3)
    assert rank_arms({"a": mean(1e6 * (0.1 + 0.2)), "b": mean(3e5)}).arms == ("a", "b")


@pytest.mark.parametrize("mode", ["max", "min"])
def test_arms_without_a_value_are_listed_and_not_ranked(mode):
    arms = {"nan": mean(math.nan), "a": mean(0.2), "none": estimate([None]), "failed": None, "far": mean(math.inf)}
    best = rank_arms(arms, mode)
    assert (best.arms, best.ranked) == (("a",), ("a",))
    assert best.unranked == ("failed", "far", "nan", "none")


def test_no_value_at_all_is_no_best():
    assert rank_arms({"a": None}) == Best((), None, (), ("a",))
    assert rank_arms({}).arm is None


def test_the_order_of_the_arms_changes_nothing():
    arms = {"a": mean(0.2), "b": mean(0.2), "c": None, "d": mean(0.1)}
    assert rank_arms(arms) == rank_arms(dict(reversed(arms.items())))


def test_near_is_no_tie():
    assert rank_arms({"a": mean(0.5), "b": mean(0.500001)}).arm == "b"


def test_rounding_near_zero_is_a_tie():
    assert rank_arms({"a": mean(0.0), "b": mean(1e-13)}).arms == ("a", "b")


def test_a_wrong_mode_is_refused():
    with pytest.raises(SettingError, match="max"):
        rank_arms({}, "maximum")
