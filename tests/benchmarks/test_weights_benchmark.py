"""The benchmark of weight pushes: what is pushed, and its verdicts."""

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

from benchmarks.weights import FIRST_PUSHES, Push, Rounds, parameters, verdicts


def test_parameters_are_a_hundred_tensors_of_the_size_that_was_asked_for():
    tensors = parameters(5)
    assert len(tensors) == 100
    assert len({tuple(tensor.shape) for tensor in tensors.values()}) == 4
    assert sum(tensor.nbytes for tensor in tensors.values()) == pytest.approx(5e6, rel=0.02)


def rounds(*, one=0.4, two=0.44, waited_for=0.2, puts=6):
    """With slow rounds between the ones that count."""
    pushes = {
        0: [Push(0, 0.2, whole=0.2), Push(0, 9.0, whole=9.0)],
        1: [Push(1, 9.0, whole=9.0), Push(1, 0.2, whole=one)],
        2: [Push(2, waited_for, whole=two), Push(2, 9.0, whole=9.0)],
    }
    return Rounds(copies=[0.2, 9.0], pushes=pushes, puts=FIRST_PUSHES + puts)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True, True, True, True]),
        ({"one": 0.51, "two": 0.51}, [False, True, True, True]),
        ({"two": 0.49}, [True, False, True, True]),
        ({"waited_for": 0.25}, [True, True, False, True]),
        ({"puts": 7}, [True, True, True, False]),
    ],
)
def test_each_bound_that_is_missed_is_said(changes, expected):
    assert list(verdicts(rounds(**changes)).values()) == expected
