"""The benchmark of the pipeline: its theory, its verdicts, and that a case can be played."""

import itertools

import pytest
from benchmarks.pipeline import Case, Gain, Speed, measure, play_local, verdicts


def case(**changes):
    return Case(**{"makers": 2, "lease_seconds": 0.1, "step_seconds": 0.3, "steps": 5, **changes})


def test_theory_is_the_slower_side_or_both_in_turn():
    assert case().theory == pytest.approx(0.4)
    assert case(makers=8).theory == pytest.approx(0.3)
    assert case(max_staleness=0).theory == pytest.approx(0.7)


def test_a_throughput_below_the_bound_is_said():
    speeds = [Speed("local", case(), 0.4 / 0.96), Speed("ray", case(), 0.4 / 0.94)]
    assert list(verdicts(speeds, []).values()) == [True, False]


@pytest.mark.parametrize(("seconds", "holds"), [(0.7, True), (0.72, True), (0.74, False), (0.66, False)])
def test_a_gain_that_is_not_that_of_theory_is_said(seconds, holds):
    gain = Gain(Speed("local", case(), 0.4), Speed("local", case(max_staleness=0), seconds))
    assert gain.theory == pytest.approx(1.75)
    assert list(verdicts([], [gain]).values()) == [holds]


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_case_is_played_to_its_end_and_is_not_faster_than_theory(staleness):
    quick = case(lease_seconds=0.004, step_seconds=0.01, max_staleness=staleness)
    ends = play_local(quick)
    assert len(ends) == quick.steps
    assert all(later - earlier >= quick.step_seconds for earlier, later in itertools.pairwise(ends))
    assert measure("local", lambda _: ends, quick, rounds=1).reached <= 1.02


def test_the_fastest_round_counts_from_the_third_step_on():
    rounds = iter([[0.0, 1.0, 2.0, 3.0, 5.0], [0.0, 9.0, 9.0, 9.5, 10.0]])
    assert measure("local", lambda _: next(rounds), case(), rounds=2).seconds == 0.5
