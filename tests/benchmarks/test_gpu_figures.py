"""The figures for a GPU: bounds are read from what was printed, and different weights are noticed."""

from benchmarks.gpu import Bound, Outcome, _different_digests


def test_a_bound_is_checked_on_what_a_process_printed():
    printed = {"figures": [{"training": 0.2}, {"training": 0.1}], "maker.probe_gap": 0.02}
    assert Bound("figures/0/training", at_most=0.26).check(printed)[0]
    assert not Bound("figures/0/training", at_most=0.19).check(printed)[0]
    assert Bound("figures/1/training:figures/0/training", at_least=0.5).check(printed)[0]
    assert not Bound("figures/1/training:figures/0/training", at_least=0.6).check(printed)[0]
    assert not Bound("maker.probe_gap", at_most=0.01).check(printed)[0]


def test_runs_that_must_agree_are_compared_by_their_digest():
    def outcome(name, digest):
        return Outcome(name, True, [], digest)

    same = [outcome("one_maker", "a"), outcome("three_makers", "a"), outcome("lora_one_maker", "b")]
    assert list(_different_digests(same)) == []
    (line,) = _different_digests([*same, outcome("lora_three_makers", "c")])
    assert "lora: 2 digests" in line
