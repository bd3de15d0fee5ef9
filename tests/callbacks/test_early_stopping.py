"""Early stopping stops when it should, and only then."""

import math

import pytest

from proa import CallbackManager, LoopState
from proa.callbacks import EarlyStopping
from proa.errors import CallbackConfigError


def steps_until_stop(callback, losses, *, metric="loss"):
    """How many steps a run with these values makes."""
    manager, state = CallbackManager([callback]), LoopState()
    manager.fire("train_start", state)
    for loss in losses:
        state.global_step += 1
        manager.fire("step_end", state, metrics={metric: loss})
        if state.should_stop:
            break
    manager.fire("train_end", state)
    return state


@pytest.mark.parametrize(
    ("mode", "values", "steps"),
    [
        ("min", [3, 2, 1, 1, 1, 1], 5),
        ("max", [1, 2, 3, 3, 3, 3], 5),
        ("min", [3, 4, 2.9, 4, 2.8, 4], 6),
        ("max", [0.1, math.nan, math.nan, 9], 3),
        ("min", [math.inf, math.nan, 1], 2),
        ("max", [math.inf, 0.5, 0.4, 0.3], 4),
    ],
)
def test_patience_counts_looks_without_improvement(mode, values, steps):
    state = steps_until_stop(EarlyStopping("loss", mode=mode, patience=2), values)
    assert state.global_step == steps


def test_a_gain_of_min_delta_is_not_enough():
    state = steps_until_stop(EarlyStopping("loss", patience=2, min_delta=0.5), [3.0, 2.5, 2.0, 1.5, 1.0])
    assert state.global_step == 5
    state = steps_until_stop(EarlyStopping("loss", patience=2, min_delta=0.5), [3.0, 2.5, 2.6, 2.5])
    assert state.global_step == 3


def test_the_reason_says_what_happened():
    state = steps_until_stop(EarlyStopping("loss", patience=2), [3, 2, 2, 2])
    assert state.stop_reason == "loss has not improved in 2 looks (now 2, best 2 after step 1)"
    assert state.stopped_by == "EarlyStopping"


def test_it_starts_afresh_for_each_run():
    callback = EarlyStopping("loss", patience=2)
    assert steps_until_stop(callback, [1, 1, 1, 1]).global_step == 3
    assert steps_until_stop(callback, [9, 9, 9, 9]).global_step == 3


def test_it_watches_evals_by_their_name():
    manager, state = CallbackManager([EarlyStopping("sort.exact", mode="max", patience=1)]), LoopState()
    for value, stopped in ((0.5, False), (0.6, False), (0.6, True)):
        manager.fire("eval_end", state, 0, "other", {"exact": 0.0})
        manager.fire("eval_end", state, 0, "sort", {"exact": value})
        assert state.should_stop is stopped


def test_a_resumed_run_goes_on_where_it_was():
    before = EarlyStopping("loss", patience=3)
    manager, state = CallbackManager([before]), LoopState()
    for loss in (1.0, 2.0, 2.0):
        manager.fire("step_end", state, metrics={"loss": loss})
    after = EarlyStopping("loss", patience=3)
    resumed, state = CallbackManager([after]), LoopState(resumed_from="step_3")
    resumed.load_state_dict(manager.state_dict())
    resumed.fire("train_start", state)
    resumed.fire("step_end", state, metrics={"loss": 2.0})
    assert state.should_stop
    assert after.state_dict() == {"best": 1.0, "best_step": -1, "looks_without_improvement": 3}


def test_two_on_different_metrics_live_side_by_side():
    keys = CallbackManager([EarlyStopping("loss"), EarlyStopping("sort.exact")]).state_dict().keys()
    assert keys == {"early_stopping:loss", "early_stopping:sort.exact"}


def test_a_metric_that_never_came_is_said_with_the_right_name(caplog):
    steps_until_stop(EarlyStopping("los"), [1, 2, 3])
    assert "watched 'los', which was never reported; did you mean 'loss'?" in caplog.text


@pytest.mark.parametrize("wrong", [{"mode": "lower"}, {"patience": 0}, {"min_delta": -1.0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(CallbackConfigError):
        EarlyStopping("loss", **wrong)
