"""Every start has its end, on every way out."""

import pytest

from proa import Callback, CallbackManager, ErrorPolicy, LoopArtifacts, LoopState, StopTraining, TrainerCallback
from proa.lifecycle import Lifecycle
from proa.testing import Recorder, problems_in


def a_detached_run(manager, *, fail_in=None, error=RuntimeError("in the body"), episodes=2, update_steps=2, epochs=2):
    """The documented loop with bodies that do nothing, or fail in the chosen one."""
    state = LoopState()
    life = Lifecycle(manager, state)

    def body(name):
        if name == fail_in:
            raise error

    with life.training(lambda: LoopArtifacts(None, steps_run=state.global_step)):
        for episode in range(episodes):
            if state.should_stop:
                break
            with life.episode(episode):
                for epoch in range(epochs):
                    with life.epoch(epoch):
                        for _ in range(update_steps):
                            if epoch == 0:
                                with life.waiting():
                                    body("wait")
                            with life.step() as step:
                                body("step")
                                step.metrics = {"loss": 1.0}
                            with life.evaluation("sort") as evaluation:
                                body("eval")
                                evaluation.metrics = {"exact": 0.5}
                            if state.should_stop:
                                break
                    if state.should_stop:
                        break
                with life.update(episode + 1):
                    body("update")
    return state


BODIES = ["wait", "step", "eval", "update"]


def test_a_run_fires_the_documented_order():
    recorder = Recorder()
    a_detached_run(CallbackManager([recorder]), episodes=1, update_steps=1)
    assert recorder.events == [
        "train_start", "episode_start",
        "epoch_start", "wait_start", "wait_end", "step_start", "step_end", "eval_start", "eval_end", "epoch_end",
        "epoch_start", "step_start", "step_end", "eval_start", "eval_end", "epoch_end",
        "update_start", "update_end", "episode_end", "train_end",
    ]  # fmt: skip
    assert problems_in(recorder.fired) == []


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("error", [RuntimeError("in the body"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_whatever_ends_a_run_everything_open_is_ended_innermost_first(body, error):
    recorder = Recorder()
    with pytest.raises(type(error)) as raised:
        a_detached_run(CallbackManager([recorder]), fail_in=body, error=error)
    assert raised.value is error
    assert problems_in(recorder.fired) == []
    assert recorder.events.count("error") == isinstance(error, Exception)


@pytest.mark.parametrize("body", BODIES)
def test_a_request_to_stop_from_the_body_ends_the_run_cleanly(body):
    recorder = Recorder()
    state = a_detached_run(CallbackManager([recorder]), fail_in=body, error=StopTraining("enough"))
    assert problems_in(recorder.fired) == []
    assert (state.should_stop, state.stop_reason, state.exception) == (True, "enough", None)
    assert "error" not in recorder.events


def test_hooks_see_what_is_ending_the_run():
    seen = []
    manager = CallbackManager()
    for event in ("step_end", "epoch_end", "episode_end", "error", "train_end"):
        manager.on(event)(lambda state, event=event: seen.append((event, state.exception, state.metrics.get("error"))))
    error = RuntimeError("lost the GPU")
    with pytest.raises(RuntimeError):
        a_detached_run(manager, fail_in="step", error=error)
    told = "RuntimeError: lost the GPU"
    assert seen == [
        ("step_end", error, None), ("epoch_end", error, None), ("episode_end", error, None),
        ("error", error, told), ("train_end", error, told),
    ]  # fmt: skip


def test_a_step_that_was_cut_short_does_not_count():
    counted = []
    manager = CallbackManager()
    manager.on("step_end")(lambda state, step_idx, metrics: counted.append((step_idx, state.global_step, metrics)))
    with pytest.raises(RuntimeError):
        a_detached_run(manager, fail_in="step")
    assert counted == [(0, 0, {})]


def test_both_families_hear_of_an_exception():
    heard = []

    class Trainer(TrainerCallback):
        def on_exception(self, exception):
            heard.append(exception)

    class Loop(Callback):
        def on_exception(self, state, exception):
            heard.append(state.exception)

    error = RuntimeError()
    with pytest.raises(RuntimeError):
        a_detached_run(CallbackManager([Trainer(), Loop()]), fail_in="step", error=error)
    assert heard == [error, error]


@pytest.mark.parametrize("policy", ErrorPolicy)
def test_a_failing_exception_handler_neither_stops_the_others_nor_hides_the_error(policy):
    heard = []

    class Alarm(Callback):
        error_policy = policy

        def on_exception(self, state, exception):
            raise OSError("no network")

    manager = CallbackManager([Alarm()])
    manager.on("error")(lambda: heard.append("before"))
    manager.add(Alarm())
    manager.on("error")(lambda: heard.append("after"))
    manager.on("train_end")(lambda: heard.append("end"))
    error = RuntimeError("the first error")
    with pytest.raises(RuntimeError) as raised:
        a_detached_run(manager, fail_in="step", error=error)
    assert raised.value is error
    assert heard == ["after", "before", "end"]
    assert manager.errors == {"Alarm": 1, "Alarm#2": 1}
    if policy is ErrorPolicy.RAISE:
        assert error.__notes__[0].startswith("while it was ending the run: OSError: no network (in callback Alarm#2")


def test_failures_on_the_way_out_are_notes_on_the_error_and_its_cause_stays():
    manager = CallbackManager()

    @manager.on("epoch_end")
    def fail():
        raise KeyError("also")

    cause = OSError("disk")
    error = RuntimeError("in the body")
    error.__cause__ = cause
    with pytest.raises(RuntimeError) as raised:
        a_detached_run(manager, fail_in="step", error=error)
    assert raised.value is error
    assert error.__cause__ is cause
    assert error.__notes__ == [
        "while it was ending the run: KeyError: 'also' (in callback fail at 'epoch_end', 0 steps done)"
    ]


def test_an_interrupt_during_the_way_out_of_an_error_is_not_swallowed():
    manager, recorder = CallbackManager(), Recorder()
    manager.add(recorder)

    @manager.on("epoch_end")
    def interrupt():
        raise KeyboardInterrupt

    error = RuntimeError("in the body")
    with pytest.raises(KeyboardInterrupt) as raised:
        a_detached_run(manager, fail_in="step", error=error)
    assert raised.value.__cause__ is error
    assert problems_in(recorder.fired) == []


def test_an_interrupt_says_so_in_the_state():
    manager, ends = CallbackManager(), []
    manager.on("train_end")(lambda state: ends.append(state))
    with pytest.raises(KeyboardInterrupt):
        a_detached_run(manager, fail_in="step", error=KeyboardInterrupt())
    assert (ends[0].stop_reason, ends[0].stopped_by) == ("interrupted", "KeyboardInterrupt")


def test_the_state_keeps_count_of_versions_and_evals():
    state = a_detached_run(CallbackManager())
    assert (state.policy_version, state.global_step, state.episode) == (2, 8, 1)
    assert state.metrics == {"loss": 1.0, "sort.exact": 0.5}


def test_a_push_that_failed_is_no_new_version():
    versions = []
    manager = CallbackManager()
    manager.on("update_end")(lambda state, version: versions.append((state.policy_version, version)))
    with pytest.raises(RuntimeError):
        a_detached_run(manager, fail_in="update")
    assert versions == [(0, 1)]


def test_a_step_without_metrics_is_told_so_and_still_ends():
    recorder = Recorder()
    life = Lifecycle(CallbackManager([recorder]), LoopState())
    with pytest.raises(TypeError, match="a training step must return its metrics as a dict"):
        with life.training(), life.epoch(0), life.step() as step:
            step.metrics = None
    assert problems_in(recorder.fired) == []
    recorder.fired.clear()
    with pytest.raises(TypeError, match="evaluator 'sort' must return its metrics as a dict"):
        with life.training(), life.evaluation("sort") as evaluation:
            evaluation.metrics = 0.5
    assert "eval_end" in recorder.events


def test_a_hook_that_fails_while_a_stop_unwinds_is_not_swallowed():
    manager = CallbackManager()

    @manager.on("epoch_end")
    def fail():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        a_detached_run(manager, fail_in="wait", error=StopTraining("enough"))


def test_artifacts_that_cannot_be_had_do_not_keep_train_end_from_firing():
    recorder = Recorder()
    life = Lifecycle(CallbackManager([recorder]), LoopState())
    with pytest.raises(OSError, match="disk"), life.training(lambda: (_ for _ in ()).throw(OSError("disk"))):
        pass
    assert recorder.events == ["train_start", "train_end"]


def test_an_error_that_the_loop_handled_is_over():
    seen, manager = [], CallbackManager()
    manager.on("step_end")(lambda state, metrics: seen.append((state.exception is None, metrics)))
    life = Lifecycle(manager, LoopState())
    with life.training(), life.epoch(0):
        try:
            with life.step():
                raise MemoryError
        except MemoryError:
            pass
        with life.step() as step:
            step.metrics = {"loss": 1.0}
    assert seen == [(False, {}), (True, {"loss": 1.0})]
