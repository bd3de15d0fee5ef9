"""The conformance kit passes trainers that keep the lifecycle and finds what others get wrong."""

import pytest

from proa import CallbackManager, LoopState, ManifestRow, StopTraining, TrainingBatch
from proa.lifecycle import Lifecycle
from proa.loop import SaveFunction, ScoreFunction, SupervisedLoop
from proa.testing import assert_lifecycle, check_lifecycle


def supervised(callbacks):
    loop = SupervisedLoop(
        lambda batch: {"loss": 1.0 / batch.data},
        callbacks=callbacks,
        evaluators=[
            ScoreFunction("a", lambda: {"x": 1.0}, run_every=2, baseline=True),
            ScoreFunction("b", lambda: {"x": 0.0}),
        ],
        saver=SaveFunction(lambda name, state: ManifestRow(name, state.global_step - 1, 0, step=state.global_step), 3),
    )
    return loop.fit(lambda epoch: [TrainingBatch(1), TrainingBatch(2)], num_epochs=2)


def detached(callbacks, *, episodes=2, steps=2, epochs=2):
    """The shape of a detached trainer: episodes, epochs over the same batches, and a push."""
    state = LoopState()
    life = Lifecycle(callbacks, state)
    with life.training():
        for episode in range(episodes):
            if state.should_stop:
                break
            with life.episode(episode):
                for epoch in range(epochs):
                    with life.epoch(epoch):
                        for _ in range(steps):
                            if state.should_stop:
                                break
                            if epoch == 0:
                                with life.waiting():
                                    pass
                            with life.step() as step:
                                step.metrics = {"loss": 0.0}
                with life.update(episode + 1):
                    pass


@pytest.mark.parametrize("train", [supervised, detached])
def test_trainers_built_on_the_lifecycle_keep_it_at_every_firing(train):
    conformance = assert_lifecycle(train, every_occurrence=True)
    assert conformance.cases == 3 * len(conformance.success) + 2


def forgets_to_end_on_error(callbacks):
    state, m = LoopState(), callbacks.moments
    m.train_start(state)
    for i in range(2):
        m.epoch_start(state, i)
        m.step_start(state)
        state.global_step += 1
        m.step_end(state, i, None, {}, None)
        m.epoch_end(state, i)
        if state.should_stop:
            break
    m.train_end(state, None)


def swallows_errors(callbacks):
    try:
        supervised(callbacks)
    except Exception:
        return


def ignores_stops(callbacks):
    state = LoopState()
    life = Lifecycle(callbacks, state)
    with life.training(), life.epoch(0):
        for _ in range(4):
            with life.step():
                pass


def counts_from_one(callbacks):
    state = LoopState(global_step=1)
    life = Lifecycle(callbacks, state)
    with life.training(), life.epoch(0), life.step():
        pass


def saves_before_it_evaluates(callbacks):
    state = LoopState()
    life = Lifecycle(callbacks, state)
    with life.training(), life.epoch(0):
        with life.step():
            pass
        life.checkpoint_saved(ManifestRow("step_1", 0, 0))
        with life.evaluation("late"):
            pass


def pushes_before_the_last_epoch(callbacks):
    life = Lifecycle(callbacks, LoopState())
    with life.training(), life.episode(0):
        with life.epoch(0), life.step():
            pass
        with life.update(1):
            pass
        with life.epoch(1), life.step():
            pass


def steps_outside_an_epoch(callbacks):
    life = Lifecycle(callbacks, LoopState())
    with life.training(), life.step():
        pass


def raises_its_own_error_instead(callbacks):
    try:
        supervised(callbacks)
    except Exception:
        raise SystemExit(1) from None


def treats_a_stop_as_an_error(callbacks):
    state = supervised(callbacks)
    if state.should_stop:
        raise StopTraining


def does_nothing(callbacks):
    with Lifecycle(callbacks, LoopState()).training():
        pass


BROKEN = {
    forgets_to_end_on_error: "train_start was never followed by its train_end",
    swallows_errors: "the error was not raised",
    ignores_stops: "more steps were started after the stop was requested",
    counts_from_one: "expected step_idx=0",
    saves_before_it_evaluates: "evals come before the checkpoint of their step",
    pushes_before_the_last_epoch: "an epoch after the episode's push of weights",
    steps_outside_an_epoch: "fired inside train, belongs inside epoch",
    treats_a_stop_as_an_error: "a stop is not an error",
    does_nothing: "no step_end fired",
}


@pytest.mark.parametrize("train", BROKEN, ids=lambda train: train.__name__)
def test_broken_trainers_are_found_out(train):
    conformance = check_lifecycle(train)
    assert any(BROKEN[train] in problem for problem in conformance.problems), str(conformance)
    with pytest.raises(AssertionError, match="breaks the lifecycle"):
        assert_lifecycle(train)


def test_an_error_is_recognised_through_the_wrapping_of_a_runtime():
    def wrapped(callbacks):
        try:
            supervised(callbacks)
        except Exception as error:
            raise RuntimeError("the actor died") from error

    assert not [p for p in check_lifecycle(wrapped).problems if "was not raised" in p]


def test_a_run_without_disturbance_is_left_alone():
    manager = CallbackManager()
    supervised(manager)
    assert len(manager.report()) == 0


def test_the_users_own_interrupt_ends_the_kit():
    def interrupted(callbacks):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_lifecycle(interrupted)


def heeds_stops_one_step_late(callbacks):
    state = LoopState()
    life = Lifecycle(callbacks, state)
    with life.training(), life.epoch(0):
        stopped = False
        for _ in range(4):
            with life.step():
                pass
            if stopped:
                break
            stopped = state.should_stop


def test_a_stop_that_is_heeded_one_step_late_is_found():
    assert any(
        "1 more steps were started" in problem for problem in check_lifecycle(heeds_stops_one_step_late).problems
    )
