"""Metrics that hooks log on the state: numbers alone, under names of their own."""

import numpy as np
import pytest
import torch

from proa import LoopState, TrainState


def test_a_logged_metric_is_in_the_state_at_once():
    state = TrainState()
    state.log("mine", 0.5)
    assert state.metrics == state.logged == {"mine": 0.5}


@pytest.mark.parametrize(
    ("value", "number"),
    [(True, True), (3, 3), (0.5, 0.5), (torch.tensor(2), 2), (np.float32(0.5), 0.5), (float("inf"), float("inf"))],
)
def test_numbers_of_python_torch_and_numpy_are_python_numbers(value, number):
    state = LoopState()
    state.log("mine", value)
    assert state.metrics["mine"] == number
    assert type(state.metrics["mine"]) is type(number)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0.5", "not the str '0.5'"),
        (None, "not the NoneType None"),
        (torch.ones(2), r"not the Tensor of shape \(2,\): log e.g. its mean"),
        ([1.0], "not the list"),
        (1j, "not the complex"),
    ],
)
def test_anything_else_is_refused(value, words):
    state = TrainState()
    with pytest.raises(TypeError, match=f"the metric 'mine' must be a number, {words}"):
        state.log("mine", value)
    assert state.metrics == {}


def test_names_that_rows_have_already_are_refused():
    with pytest.raises(ValueError, match="cannot be named 'step'"):
        TrainState().log("step", 1)
    with pytest.raises(TypeError, match="a text that is not empty, not ''"):
        TrainState().log("", 1)


def test_what_was_logged_joins_a_step_s_metrics_once():
    state = TrainState()
    state.log("mine", 1)
    assert state.join_logged({"loss": 2.0}) == {"loss": 2.0, "mine": 1}
    assert state.join_logged({"loss": 2.0}) == {"loss": 2.0}


def test_a_metric_of_the_step_itself_is_not_replaced_and_a_warning_says_so_once(caplog):
    state = TrainState()
    state.log("loss", 9.0)
    assert state.join_logged({"loss": 2.0}) == {"loss": 2.0}
    state.log("loss", 9.0)
    assert not state.has_logged
    assert [record.getMessage() for record in caplog.records] == [
        "'loss' is a metric of the step itself: what a hook logs under this name is dropped"
    ]


def test_plain_values_have_what_was_logged_but_not_what_waits_for_a_row():
    state = LoopState()
    state.log("mine", 1)
    assert state.to_dict()["logged"] == {"mine": 1}
    assert not any(name.startswith("_") for name in state.to_dict())
