"""Evals in the background: training goes on, and their moments come when the scores are there."""

import threading

import pytest

from proa import Callback, ManifestRow, TrainingBatch
from proa.loop import Evaluator, SaveFunction, ScoreFunction, Scoring, SupervisedLoop
from proa.loop.evaluators import BackgroundScoring
from proa.testing import Recorder
from proa.testing.grammar import problems_in

PATIENCE = 10.0


class Apart(Evaluator):
    """An eval of which the test says when it is over. Its score is the number of steps that had been done."""

    def __init__(self, name="a", run_every=1, **settings):
        super().__init__(name, run_every, apart=True, **settings)
        self.may_end = threading.Event()
        self.steps_done = 0
        self.reported = []

    def begin(self, state):
        return ApartScoring(self, self.steps_done)


class ApartScoring(Scoring):
    def __init__(self, apart, steps):
        self.apart, self.steps = apart, steps

    def score(self):
        assert threading.current_thread() is not threading.main_thread()
        assert self.apart.may_end.wait(PATIENCE)
        return {"steps": float(self.steps)}

    def report(self):
        self.apart.reported.append(self.apart.name)


@pytest.fixture(autouse=True)
def over_when_waited_for(monkeypatch):
    """An eval is over at the latest when it is waited for, so that no test depends on how fast the machine is."""
    scores = BackgroundScoring.scores

    def ended(under_way):
        if isinstance(under_way.evaluator, Apart):
            under_way.evaluator.may_end.set()
        return scores(under_way)

    monkeypatch.setattr(BackgroundScoring, "scores", ended)


def train(apart, *, steps=4, save_every=0, at_step=None, callbacks=()):
    rows = []

    def save(name, state):
        rows.append(ManifestRow(name, state.global_step - 1, state.epoch, step=state.global_step))
        rows[-1].metrics = dict(state.metrics)
        return rows[-1]

    def step(batch):
        apart.steps_done = batch.data + 1
        if at_step:
            at_step(batch.data)
        return {"loss": 0.0}

    recorder = Recorder()
    loop = SupervisedLoop(
        step, callbacks=[recorder, *callbacks], evaluators=[apart], saver=SaveFunction(save, save_every)
    )
    try:
        state = loop.fit(lambda epoch: map(TrainingBatch, range(steps)))
    finally:
        heard = [f"{one.event} {one.step_idx}" for one in recorder.fired if one.event in ("step_end", "eval_end")]
        assert not problems_in(recorder.fired)
    return heard, rows, state


def thread_of(apart):
    return next((one for one in threading.enumerate() if one.name == f"eval {apart.name}"), None)


def test_training_goes_on_meanwhile_and_the_scores_are_told_with_their_own_step():
    apart = Apart(run_every=2)

    def end_it_in_the_third_step(step):
        if step == 2:
            apart.may_end.set()
            thread_of(apart).join(PATIENCE)

    heard, _, state = train(apart, steps=4, at_step=end_it_in_the_third_step)
    assert heard == ["step_end 0", "step_end 1", "step_end 2", "eval_end 1", "step_end 3", "eval_end 3"]
    assert state.metrics["a.steps"] == 4
    assert apart.reported == ["a"] * 2


def test_a_run_that_saves_nothing_waits_for_it_at_its_end():
    apart = Apart(run_every=4)
    loop = SupervisedLoop(lambda batch: {"loss": 0.0}, evaluators=[apart])
    assert "a.steps" in loop.fit(lambda epoch: map(TrainingBatch, range(4))).metrics


def test_a_checkpoint_waits_for_it_so_that_its_row_has_the_scores():
    apart = Apart(run_every=3)
    heard, rows, _ = train(apart, steps=5, save_every=4)
    assert heard[2:] == ["step_end 2", "step_end 3", "eval_end 2", "step_end 4", "eval_end 4"]
    assert (rows[0].name, rows[0].metrics["a.steps"]) == ("step_4", 3)


def test_the_next_one_of_that_name_waits_for_it():
    apart = Apart(run_every=2)
    heard, _, _ = train(apart)
    assert heard == ["step_end 0", "step_end 1", "step_end 2", "step_end 3", "eval_end 1", "eval_end 3"]


def test_the_baseline_is_of_the_weights_before_the_first_step_whenever_it_is_told():
    apart = Apart(run_every=0, baseline=True)
    scores = []

    class Listens(Callback):
        def on_eval(self, state, step_idx, eval_name, metrics):
            scores.append((step_idx, metrics["steps"]))

    apart.may_end.set()
    train(apart, callbacks=[Listens()])
    assert scores == [(-1, 0.0), (3, 4.0)]


def test_what_it_raises_ends_the_run_with_the_evals_moments_closed():
    class Fails(Apart):
        def begin(self, state):
            return ScoreFunction("a", lambda: {}["no scores"]).begin(state)

    apart = Fails(run_every=1)
    with pytest.raises(KeyError, match="no scores"):
        train(apart)


def test_a_run_that_fails_does_not_leave_it_behind():
    apart = Apart(run_every=1)
    threading.Timer(0.2, apart.may_end.set).start()

    def fail(step):
        if step == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(apart, at_step=fail)
    assert thread_of(apart) is None
    assert apart.reported == []


def test_scores_that_an_eval_has_no_more_are_not_its_latest():
    given = [{"x": 1.0, "errors": 2.0}, {"x": 0.5}]
    other = ScoreFunction("ab", lambda: {"errors": 1.0}, run_every=1)
    once = ScoreFunction("a", lambda: given.pop(0), run_every=1)
    loop = SupervisedLoop(lambda batch: {"loss": 0.0}, evaluators=[other, once])
    state = loop.fit(lambda epoch: map(TrainingBatch, range(2)))
    assert state.metrics == {"loss": 0.0, "a.x": 0.5, "ab.errors": 1.0}
