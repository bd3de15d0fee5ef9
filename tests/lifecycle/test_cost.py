"""What dispatch costs, counted in calls rather than in seconds, and how slow callbacks are found."""

import sys

import pytest

from proa import Callback, CallbackManager, LoopState, TrainerCallback, TrainState
from proa.lifecycle import dispatch, profiling


def python_calls(action):
    """How many Python functions are called, which does not depend on how busy the machine is."""
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        action()
    finally:
        sys.setprofile(None)
    return [name for name in calls if name != "<lambda>"]


class Idle(Callback):
    def on_eval(self, state, step_idx, eval_name, metrics): ...


class Busy(TrainerCallback):
    def on_batch_end(self, metrics, experience): ...


def test_callbacks_that_do_not_override_a_hook_cost_what_none_costs():
    state, none, ten = LoopState(), CallbackManager(), CallbackManager([Idle() for _ in range(10)])
    assert ten.moments.step_end is none.moments.step_end  # the very same function that does nothing
    assert python_calls(lambda: ten.fire("step_end", state)) == ["fire"]


def test_ten_that_do_cost_one_dispatch_and_their_ten_calls():
    state, manager = LoopState(), CallbackManager([Busy() for _ in range(10)])
    for _ in range(10):  # the first firings are compiled and profiled
        manager.moments.step_end(state, 0, None, {}, None)
    calls = python_calls(lambda: manager.moments.step_end(state, 0, None, {}, None))
    assert calls == ["step_end", *["on_batch_end"] * 10]


def test_without_timing_no_clock_is_read():
    manager = CallbackManager([Busy()], timing=False)
    manager.fire("step_end", LoopState())
    names = manager.moments.step_end.__code__.co_names
    assert "perf_counter" not in names
    assert all(row.seconds == 0 for row in manager.report())
    assert "perf_counter" in _fired(CallbackManager([Busy()])).moments.step_end.__code__.co_names


def _fired(manager):
    for _ in range(5):
        manager.fire("step_end", LoopState())
    return manager


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when it is told to: the machine may be busy."""
    now = [0.0]
    for module in (dispatch, profiling):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])

    def pass_time(seconds):
        now[0] += seconds

    return pass_time


def test_the_report_has_calls_time_and_errors_of_each(clock):
    manager = CallbackManager([Busy()])

    @manager.on("step_end", every=2)
    def slow():
        clock(0.002)

    for done in range(1, 11):
        manager.fire("step_end", TrainState(global_step=done))
    rows = {row.callback: row for row in manager.report()}
    assert (rows["Busy"].calls, rows["slow"].calls) == (10, 5)
    assert rows["slow"].seconds == pytest.approx(0.01)
    assert rows["Busy"].seconds == 0
    assert str(manager.report()).splitlines()[1].startswith("slow")


def test_the_warning_about_a_slow_moment_names_the_culprit(clock, caplog):
    manager = CallbackManager([Busy()])

    @manager.on("step_end")
    def culprit():
        clock(0.003)

    for done in range(1, 40):
        clock(0.001)
        manager.fire("step_end", TrainState(global_step=done))
    assert [record.getMessage() for record in caplog.records] == [
        "callbacks at 'step_end' take 75 % of the time: 3.0 ms at each, of which culprit takes 3.0 ms"
    ], "once is enough"


def test_one_hiccup_is_no_reason_to_warn(clock, caplog):
    manager = CallbackManager()

    @manager.on("step_end")
    def hiccups_once(step_idx):
        if step_idx == 5:
            clock(0.02)

    for done in range(1, 40):
        clock(0.002)
        manager.fire("step_end", TrainState(global_step=done))
    assert caplog.text == ""


def test_a_dear_callback_that_is_rare_is_no_overrun(clock, caplog):
    """20 ms every 50 steps of 10 ms are 4 % of the time, though one firing is dearer than a step."""
    manager = CallbackManager()
    manager.on("checkpoint_saved")(lambda: clock(0.02))
    for _ in range(30):
        clock(0.5)
        manager.fire("checkpoint_saved", TrainState())
    assert caplog.text == ""
