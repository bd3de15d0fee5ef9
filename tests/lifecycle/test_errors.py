"""What a failing hook does, and does not do, to the others and to the run."""

import logging
import pickle
import traceback

import pytest

from proa import Callback, CallbackManager, ErrorPolicy, LoopState, StopTraining, TrainState
from proa.errors import HookError


class Failing(Callback):
    """Fails at the steps in `at`, or at all."""

    def __init__(self, policy=ErrorPolicy.RAISE, at=None, error=None):
        self.error_policy = policy
        self.at = at
        self.error = error or ValueError("broken")
        self.heard = []

    def on_step_end(self, state, step_idx, batch, metrics):
        self.heard.append(step_idx)
        if self.at is None or step_idx in self.at:
            raise self.error

    def on_train_end(self, state, artifacts):
        self.heard.append("end")


def fire_steps(manager, count):
    for done in range(1, count + 1):
        manager.fire("step_end", LoopState(global_step=done))


def test_by_default_the_error_comes_out_and_names_callback_hook_and_step():
    manager = CallbackManager([Failing()])
    with pytest.raises(ValueError, match="broken") as raised:
        manager.fire("step_end", LoopState(global_step=12))
    assert raised.value.__notes__ == ["in callback Failing.on_step_end at 'step_end', 12 steps done"]
    assert "in on_step_end" in "".join(traceback.format_exception(raised.value))
    assert manager.errors == {"Failing": 1}


def test_everyone_hears_a_moment_before_its_error_is_raised():
    manager, heard = CallbackManager([Failing()]), []
    manager.on("step_end")(lambda: heard.append("later"))
    with pytest.raises(ValueError, match="broken"):
        manager.fire("step_end", LoopState())
    assert heard == ["later"]


def test_of_two_errors_the_first_is_raised_and_the_second_noted():
    manager = CallbackManager([Failing(), Failing(error=KeyError("second"))])
    with pytest.raises(ValueError, match="broken") as raised:
        manager.fire("step_end", LoopState())
    assert "also failed: KeyError: 'second' (in callback Failing#2.on_step_end" in raised.value.__notes__[1]
    assert manager.errors == {"Failing": 1, "Failing#2": 1}


def test_logged_failures_are_counted_and_training_goes_on(caplog):
    callback = Failing(ErrorPolicy.LOG)
    manager = CallbackManager([callback])
    fire_steps(manager, 10)
    assert len(callback.heard) == 10
    assert manager.errors == {"Failing": 10}
    assert "Failing.on_step_end failed; training continues" in caplog.text
    assert "ValueError: broken" in caplog.text


def test_three_failures_in_a_row_disable_a_callback_but_not_its_end(caplog):
    callback = Failing(ErrorPolicy.DISABLE)
    manager = CallbackManager([callback])
    fire_steps(manager, 10)
    assert callback.heard == [0, 1, 2]
    assert "is disabled" in caplog.text
    manager.fire("train_end", LoopState())
    assert callback.heard[-1] == "end"
    assert manager.errors == {"Failing": 3}
    assert [row.disabled for row in manager.report()] == [True, True]


def test_a_success_in_between_starts_the_count_again():
    callback = Failing(ErrorPolicy.DISABLE, at={0, 1, 3, 4, 6, 7})
    manager = CallbackManager([callback])
    fire_steps(manager, 10)
    assert callback.heard == list(range(10))
    assert manager.errors == {"Failing": 6}


def test_a_hook_that_is_heard_rarely_is_disabled_by_its_own_failures():
    heard = []
    manager = CallbackManager()

    @manager.on("step_end", every=2, error_policy=ErrorPolicy.DISABLE)
    def fail(step_idx):
        heard.append(step_idx)
        raise ValueError

    fire_steps(manager, 20)
    assert heard == [1, 3, 5]


@pytest.mark.parametrize("policy", ErrorPolicy)
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_come_out_whatever_the_policy(policy, interrupt):
    manager, heard = CallbackManager([Failing(policy, error=interrupt())]), []
    manager.on("step_end")(lambda: heard.append("later"))
    with pytest.raises(interrupt):
        manager.fire("step_end", LoopState())
    assert heard == ["later"]
    assert manager.errors == {}  # an interrupt is nobody's failure


@pytest.mark.parametrize("order", [1, -1])
def test_an_interrupt_outranks_an_error(order):
    manager = CallbackManager([Failing(), Failing(error=KeyboardInterrupt())][::order])
    with pytest.raises(KeyboardInterrupt):
        manager.fire("step_end", LoopState())


def test_stop_training_can_be_raised_and_is_no_error():
    manager, heard = CallbackManager([Failing(error=StopTraining("enough"))]), []
    manager.on("step_end")(lambda state: heard.append(state.should_stop))
    state = LoopState(global_step=1)
    manager.fire("step_end", state)
    assert (state.stop_reason, state.stopped_by) == ("enough", "Failing.on_step_end")
    assert heard == [True]
    assert manager.errors == {}


def test_the_first_request_to_stop_is_the_one_recorded():
    state = LoopState()

    def patience(state):
        state.stop_training("no progress")

    def budget(state):
        state.request_stop("too dear")

    manager = CallbackManager()
    manager.on("step_end")(patience)
    manager.on("step_end")(budget)
    manager.fire("step_end", state)
    assert (state.stop_reason, state.stopped_by) == ("no progress", "patience")
    assert state.stop_requested


def test_setting_should_stop_says_who_did_it():
    state = TrainState()

    class Control(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            state.should_stop = True

    CallbackManager([Control()]).fire("step_end", state)
    assert (state.should_stop, state.stopped_by) == (True, "Control.on_step_end")
    assert state.stop_reason == "should_stop was set"


def test_errors_survive_a_trip_to_another_process():
    for error in (StopTraining("enough"), HookError("not a hook")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.args) == (type(error), error.args)
    assert pickle.loads(pickle.dumps(StopTraining("enough"))).reason == "enough"


def test_the_log_is_silent_while_nothing_fails(caplog):
    caplog.set_level(logging.DEBUG)
    manager = CallbackManager([Failing(at=())])
    fire_steps(manager, 5)
    assert caplog.text == ""


def test_a_hook_that_is_heard_at_each_nth_firing_is_disabled_by_its_failures_too():
    heard, manager = [], CallbackManager()

    @manager.on("eval_end", every=2, error_policy=ErrorPolicy.DISABLE)
    def fail():
        heard.append(1)
        raise ValueError

    for _ in range(20):
        manager.fire("eval_end", LoopState())
    assert len(heard) == 3


def test_an_exception_object_that_is_raised_again_gathers_no_notes():
    manager = CallbackManager([Failing(ErrorPolicy.LOG, error=ValueError("always the same"))])
    for _ in range(5):
        manager.fire("step_end", LoopState(global_step=1))
    assert len(manager.callbacks[0].error.__notes__) == 1


def test_each_run_counts_from_zero_and_gives_a_disabled_callback_another_chance():
    from proa.lifecycle import Lifecycle

    callback = Failing(ErrorPolicy.DISABLE)
    manager = CallbackManager([callback])
    for _ in range(2):
        life = Lifecycle(manager, LoopState())
        with life.training(), life.epoch(0):
            for _ in range(5):
                with life.step():
                    pass
        assert manager.errors == {"Failing": 3}
