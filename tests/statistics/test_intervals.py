"""Estimates over repeats equal scipy's t-interval, and what is missing is counted, not guessed."""

import math

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.errors import SettingError
from proa.statistics import Estimate, estimate
from proa.statistics.intervals import student_t

numbers = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=2, max_size=12).filter(
    lambda values: len(set(values)) > 1
)


@settings(deadline=None)
@given(numbers, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_is_scipys(values, level):
    found = estimate(values, level)
    mean = sum(values) / len(values)
    low, high = scipy.stats.t.interval(level, len(values) - 1, loc=mean, scale=scipy.stats.sem(values))
    assert found.mean == pytest.approx(mean, rel=1e-12, abs=1e-12)
    assert (found.low, found.high) == (
        pytest.approx(low, rel=1e-9, abs=1e-12),
        pytest.approx(high, rel=1e-9, abs=1e-12),
    )
    assert found.deviation == pytest.approx(scipy.stats.tstd(values), rel=1e-9, abs=1e-12)
    assert (found.n, found.missing, found.level) == (len(values), 0, level)


def test_the_interval_is_the_one_worked_by_hand():
    found = estimate([0.0, 1.0, 2.0, 5.0])  # mean 2, s² = (4 + 1 + 0 + 9)/3, t(3) = 3.18244630528371
    half = 3.18244630528371 * math.sqrt(14 / 3) / 2
    assert found.mean == 2
    assert found.low == pytest.approx(2 - half, rel=1e-12)
    assert found.high == pytest.approx(2 + half, rel=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 299])
def test_the_t_quantile_is_scipys(freedom):
    assert student_t(freedom, 0.9) == pytest.approx(scipy.stats.t.ppf(0.95, freedom), rel=1e-12)


def test_what_is_no_number_is_left_out_and_counted():
    found = estimate([1.0, None, math.nan, 3.0, math.inf, -math.inf])
    assert found == Estimate(2.0, found.low, found.high, 2, 4, 0.95, found.deviation)
    assert (found.low, found.high) == (estimate([1.0, 3.0]).low, estimate([1.0, 3.0]).high)


def test_one_repeat_has_no_interval():
    assert estimate([0.25, None]) == Estimate(0.25, None, None, 1, 1)


def test_no_repeat_has_no_mean():
    assert estimate([math.nan]) == Estimate(None, None, None, 0, 1)
    assert estimate([]) == Estimate(None, None, None, 0, 0)


@pytest.mark.parametrize("value", [0.405, 1 / 3, 0.0])
def test_equal_repeats_have_no_interval(value):
    """One without width would claim certainty."""
    found = estimate([value] * 7)
    assert (found.low, found.mean, found.high, found.n, found.deviation) == (None, value, None, 7, 0.0)


def test_rounding_is_no_spread():
    assert estimate([0.1 + 0.2, 0.3]).low is None
    assert estimate([0.3 + 1e-6, 0.3]).low is not None


@pytest.mark.parametrize("level", [0, 1, 95, -0.5])
def test_a_level_that_is_no_probability_is_refused(level):
    with pytest.raises(SettingError, match="0.95"):
        estimate([1.0, 2.0], level)
