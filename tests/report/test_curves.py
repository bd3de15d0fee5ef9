"""Long curves become short ones, and nothing that matters in them is lost."""

import math
import random

import pytest

from proa.report.curves import MOST_BAND_POINTS, MOST_POINTS, Series, curve_of, thinned


def series(values, first=1):
    made = Series()
    for step, value in enumerate(values, start=first):
        made.add(step, value)
    return made


def test_a_short_curve_stays_as_it_is():
    assert thinned([1, 2, 3], [0.5, 0.1, 0.9]) == ([1, 2, 3], [0.5, 0.1, 0.9])


@pytest.mark.parametrize("place", [1, 777, 4_999, 9_998])
def test_thinning_keeps_every_lonely_peak(place):
    chance = random.Random(place)
    values = [chance.random() for _ in range(10_000)]
    values[place], values[10_000 - 1 - place] = 50.0, -50.0
    steps, kept = thinned(range(10_000), values)
    found = dict(zip(steps, kept, strict=True))
    assert found[place] == 50.0
    assert found[10_000 - 1 - place] == -50.0


def test_thinning_keeps_the_ends_the_order_and_the_bound():
    values = [math.sin(step / 50) for step in range(100_000)]
    steps, kept = thinned(range(100_000), values)
    assert (steps[0], steps[-1]) == (0, 99_999)
    assert steps == sorted(set(steps))
    assert len(steps) <= MOST_POINTS
    assert [values[step] for step in steps] == kept


def test_the_least_and_the_greatest_of_every_stretch_are_kept():
    chance = random.Random(1)
    values = [chance.gauss(0, 1) for _ in range(30_000)]
    steps, kept = thinned(range(30_000), values, most=302)
    for stretch in range(100):
        inside = [value for step, value in zip(steps, kept, strict=True) if stretch * 300 <= step < stretch * 300 + 300]
        assert min(inside) == min(values[stretch * 300 : stretch * 300 + 300])
        assert max(inside) == max(values[stretch * 300 : stretch * 300 + 300])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gap_survives_thinning_beside_the_peaks(bad):
    values = [1.0] * 10_000
    values[5_000], values[5_001] = bad, 9.0
    steps, kept = thinned(range(10_000), values)
    found = dict(zip(steps, kept, strict=True))
    assert not math.isfinite(found[5_000])
    assert found[5_001] == 9.0


def test_what_is_not_finite_is_a_gap_and_counted():
    curve = curve_of([series([1.0, math.nan, math.inf, 2.0])])
    assert [value == value for value in curve.values] == [True, False, False, True]
    assert (curve.not_finite, curve.first_not_finite) == (2, 2)


def test_many_repeats_become_a_mean_with_the_t_interval():
    curve = curve_of([series([float(place), 5.0]) for place in range(1, 6)])
    assert curve.values == [3.0, 5.0]
    half = 2.7764451051977987 * math.sqrt(2.5) / math.sqrt(5)  # t of four degrees of freedom at 97.5 %, variance 2.5
    assert curve.low == pytest.approx([3 - half, 5.0], abs=1e-9)
    assert curve.high == pytest.approx([3 + half, 5.0], abs=1e-9)
    assert curve.repeats == [5, 5]
    assert curve.each == []


def test_few_repeats_become_a_mean_and_a_line_for_each():
    curve = curve_of([series([1.0, 5.0]), series([2.0, 5.0]), series([3.0, 5.0])])
    assert curve.values == [2.0, 5.0]
    assert curve.repeats == [3, 3]
    assert (curve.low, curve.high) == ([], [])
    assert [values for _, values in curve.each] == [[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]


def test_a_band_stays_within_what_is_possible():
    curve = curve_of([series([value]) for value in (0.1, 0.9, 0.95, 0.99, 1.0)], within=(0.0, 1.0))
    assert curve.high == [1.0]
    assert 0.0 < curve.low[0] < curve.values[0]


def test_a_repeat_that_ends_early_counts_as_far_as_it_goes():
    curve = curve_of([series([1.0, 1.0]), *(series([3.0]) for _ in range(4))])
    assert curve.values == [2.6, 1.0]
    assert curve.repeats == [5, 1]
    assert curve.low[1] is None


def test_a_value_that_is_no_number_is_left_out_of_the_mean():
    curve = curve_of([series([1.0]), series([math.nan]), series([3.0])])
    assert (curve.values, curve.repeats) == ([2.0], [2])


def test_many_steps_of_repeats_are_means_of_stretches():
    curve = curve_of([series([float(step) for step in range(1, 1001)])] * 2)
    assert len(curve.steps) <= MOST_BAND_POINTS
    assert curve.every == 9
    assert curve.values[0] == 5.0  # of the steps 1 to 9, shown at 5
    assert curve.steps[0] == 5


def test_one_value_that_is_no_number_does_not_cost_a_stretch_its_mean():
    values = [1.0] * 1000
    values[3] = math.nan
    curve = curve_of([series(values), series([3.0] * 1000)])
    assert (curve.values[0], curve.repeats[0]) == (2.0, 2)


def test_what_is_written_again_after_a_resume_counts():
    made = series([1.0, 2.0, 3.0])
    made.add(2, 9.0)
    assert (list(made.steps), list(made.values)) == ([1, 2], [1.0, 9.0])


def test_nothing_measured_is_no_curve():
    assert curve_of([]) is None
    assert curve_of([Series()]) is None
