"""Early stopping stops when it should, and only then."""

import math

import pytest

from proa import Callback, CallbackManager, LoopState, TrainingBatch
from proa.callbacks import EarlyStopping
from proa.config import DetachedConfig
from proa.config.eval_section import EvalSection
from proa.errors import CallbackConfigError
from proa.loop import ScoreFunction, SupervisedLoop
from proa.run.placing import place_callbacks


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
    assert state.stop_reason == "loss has not improved in 2 looks (now 2, best 2 after step 2)"
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


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "early stopping watches" in record.getMessage()]


def test_a_metric_that_the_first_step_does_not_report_is_warned_of_at_once_and_once(caplog):
    callback, state = EarlyStopping("los"), LoopState()
    for step_idx, metrics in enumerate([{"skipped": 1.0}, {"loss": 1.0}, {"loss": 0.5}]):
        callback.on_step_end(state, step_idx, None, metrics)
        assert len(warnings(caplog)) == (step_idx > 0)  # a step without data says nothing of the names
    assert "'los', which step 2 did not report; did you mean 'loss'?" in warnings(caplog)[0]


def test_a_score_that_its_eval_does_not_report_is_warned_of_at_the_first_eval(caplog):
    table = {
        "sort.exat": "did you mean 'sort.exact'?",
        "sort.reward": "(it reported: sort.exact)",
        "srot.exact": "sort.exact",
    }
    for metric, words in table.items():
        caplog.clear()
        callback = EarlyStopping(metric)
        callback.on_step_end(LoopState(), 0, None, {"loss": 1.0})
        assert warnings(caplog) == []
        callback.on_eval(LoopState(), 0, "other", {"accuracy": 1.0})
        assert warnings(caplog) == []
        callback.on_eval(LoopState(), 0, "sort", {"exact": 1.0})
        assert f"{metric!r}, which the eval sort after step 1 did not report" in warnings(caplog)[0]
        assert words in warnings(caplog)[0]


def test_a_metric_that_is_reported_or_logged_by_a_hook_is_not_warned_of(caplog):
    logged = LoopState(metrics={"mine": 1.0})
    EarlyStopping("mine").on_step_end(logged, 0, None, {"loss": 1.0})
    EarlyStopping("loss").on_step_end(LoopState(), 0, None, {"loss": 1.0})
    EarlyStopping("sort.exact").on_eval(LoopState(), 0, "sort", {"exact": 1.0})
    assert warnings(caplog) == []


def test_a_misspelt_eval_is_refused_where_the_evals_are_known():
    config = DetachedConfig.model_construct(eval=[EvalSection(name="sort_digits")], callbacks=[], runtime="local")
    manager = CallbackManager([EarlyStopping("sort_digit.exact")])
    for callbacks in ([EarlyStopping("sort_digit.exact")], manager):
        with pytest.raises(CallbackConfigError, match="no eval is named 'sort_digit'; did you mean 'sort_digits'?"):
            place_callbacks(config, callbacks)
    assert len(manager.callbacks) == 1
    for known in ("sort_digits.exact", "reward.sort_digits", "mine.own", "loss"):
        with place_callbacks(config, [EarlyStopping(known)]):
            pass


def test_a_metric_that_hooks_log_after_the_step_is_watched_once_a_step(caplog):
    class Logs(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            state.log("late", 1.0)

    class Adds(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            metrics["late"] = 1.0

    for hook in (Logs(), Adds()):
        loop = SupervisedLoop(lambda batch: {"loss": 1.0}, callbacks=[EarlyStopping("late", patience=3), hook])
        assert loop.fit(lambda epoch: [TrainingBatch(0)] * 9).global_step == 4
    assert warnings(caplog) == []


def test_the_loss_of_the_only_loss_eval_is_watched_under_its_short_name():
    loop = SupervisedLoop(
        lambda batch: {"loss": 1.0},
        callbacks=[EarlyStopping("eval_loss", patience=2)],
        evaluators=[ScoreFunction("held_out", lambda: {"eval_loss": 1.0}, run_every=1)],
    )
    assert loop.fit(lambda epoch: [TrainingBatch(0)] * 9).global_step == 3
