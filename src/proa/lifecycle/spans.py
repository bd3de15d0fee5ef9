"""`Lifecycle`: the pairs of moments as `with` blocks, so that a loop cannot start what it does not end.

    life = Lifecycle(manager, state)
    with life.training(artifacts):
        for epoch in range(epochs):
            with life.epoch(epoch):
                for batch in batches:
                    with life.step() as step:
                        step.batch, step.metrics = batch, train_on(batch)
                    if state.should_stop:
                        break

Every way out (the end, a stop, an error, an interrupt) ends all open spans, innermost first. A hook that fails while an
error propagates is counted and noted on that error, and never replaces it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ..data.experience import Experience
from ..data.loop import LoopArtifacts, ManifestRow, TrainingBatch
from ..data.state import LoopState, StopTraining
from .current import logging_to
from .failures import note_failure
from .logged import LoggedMetrics
from .manager import CallbackManager

LOSS = "eval_loss"


@dataclass
class Step:
    """The results of a step's body, for `step_end`."""

    index: int
    batch: TrainingBatch | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    experience: Experience | None = None


@dataclass
class Evaluation:
    """The results of an eval's body, for `eval_end`."""

    metrics: dict[str, float] = field(default_factory=dict)


class Lifecycle:
    """The moments of one trainer, fired in pairs, with the state's counters kept in step."""

    def __init__(self, manager: CallbackManager, state: LoopState) -> None:
        self.manager = manager
        self.state = state
        self._moments = manager.moments
        self._logged = LoggedMetrics(manager, state)
        self._loss_evals: set[str] = set()

    @contextlib.contextmanager
    def training(self, artifacts: Callable[[], LoopArtifacts | None] = lambda: None) -> Iterator[None]:
        """The whole run: `train_start`, and on every way out `train_end`, after `error` if there was one.

        `StopTraining` ends here: it is a request, not an error.
        """
        with logging_to(self.state), self._logged.attached(), self._training(artifacts):
            yield

    @contextlib.contextmanager
    def _training(self, artifacts: Callable[[], LoopArtifacts | None]) -> Iterator[None]:
        self.manager.begin_training()
        self.state.exception = None
        try:
            self._moments.train_start(self.state)
            yield
        except StopTraining as stop:
            self.state.exception = None
            self.state.stop_training(stop.reason, by="StopTraining")
        except BaseException as failure:
            outcome = self._fail(failure, artifacts)
            if outcome is failure:
                raise
            raise outcome from failure
        self._end_training(artifacts)

    def _end_training(self, artifacts: Callable[[], LoopArtifacts | None]) -> None:
        """Fire `train_end`, without artifacts if they cannot be collected."""
        made: LoopArtifacts | None = None
        try:
            made = artifacts()
        finally:
            self._moments.train_end(self.state, made)
        self._follow()

    def _fail(self, failure: BaseException, artifacts: Callable[[], LoopArtifacts | None]) -> BaseException:
        state, moments = self.state, self._moments
        outcome = state.exception = failure
        if isinstance(failure, Exception):
            state.metrics["error"] = f"{type(failure).__name__}: {failure}"
            outcome = _run_during(outcome, lambda: moments.error(state, failure))
        else:
            kind = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else type(failure)
            state.stop_training("interrupted", by=kind.__name__)
        return _run_during(outcome, lambda: self._end_training(artifacts))

    @contextlib.contextmanager
    def episode(self, episode: int) -> Iterator[None]:
        self.state.episode = episode
        moments, state = self._moments, self.state

        def end() -> None:
            moments.episode_end(state, episode)
            self._follow()

        with self._pair(lambda: moments.episode_start(state, episode), end):
            yield

    @contextlib.contextmanager
    def epoch(self, epoch: int, *, first_step: int = 0) -> Iterator[None]:
        self.state.epoch, self.state.step = epoch, first_step
        moments, state = self._moments, self.state

        def end() -> None:
            moments.epoch_end(state, epoch)
            self._follow()

        with self._pair(lambda: moments.epoch_start(state, epoch), end):
            yield

    @contextlib.contextmanager
    def step(self) -> Iterator[Step]:
        """One optimizer step. The counters move only if it was done, before `step_end` fires."""
        state, moments = self.state, self._moments
        step = Step(state.global_step)
        done = False

        def end() -> None:
            if done:
                state.global_step, state.step = step.index + 1, state.step + 1
                step.metrics = self._logged.join(step.metrics)
                state.metrics.update(step.metrics)
            metrics = step.metrics if done else {}
            moments.step_end(state, step.index, step.batch, metrics, step.experience)
            self._logged.follow(state.global_step - 1, metrics if done else None)

        with self._pair(lambda: moments.step_start(state), end):
            try:
                yield step
                _check_dict("a training step", step.metrics)
                done = True
            except StopTraining as stop:  # a request: evals and checkpoints of this step still follow
                state.exception = stop
                state.stop_training(stop.reason, by="the training step")
        state.exception = None

    @contextlib.contextmanager
    def update(self, version: int) -> Iterator[None]:
        """The push of weights; `state.policy_version` is `version` once it succeeded."""
        moments, state = self._moments, self.state

        def end() -> None:
            moments.update_end(state, version)
            self._follow()

        with self._pair(lambda: moments.update_start(state, version), end):
            yield
            state.policy_version = version

    @contextlib.contextmanager
    def evaluation(self, eval_name: str, step_idx: int | None = None) -> Iterator[Evaluation]:
        """One eval of the weights after a step, by default the last one."""
        moments, state = self._moments, self.state
        step = state.global_step - 1 if step_idx is None else step_idx
        evaluation = Evaluation()

        done = False

        def end() -> None:
            scores = evaluation.metrics if done else {}
            if done:  # scores that only the previous eval had are out of date
                for key in [key for key in state.metrics if key.startswith(f"{eval_name}.")]:
                    del state.metrics[key]
            state.metrics.update({f"{eval_name}.{key}": value for key, value in scores.items()})
            if LOSS in scores:
                self._name_loss(eval_name, scores[LOSS])
            moments.eval_end(state, step, eval_name, scores)
            self._logged.follow(step)

        with self._pair(lambda: moments.eval_start(state, step, eval_name), end):
            yield evaluation
            _check_dict(f"evaluator {eval_name!r}", evaluation.metrics)
            done = True

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        moments, state = self._moments, self.state
        begun = perf_counter()
        with self._pair(lambda: moments.wait_start(state), lambda: moments.wait_end(state, perf_counter() - begun)):
            yield

    def checkpoint_saved(self, row: ManifestRow) -> None:
        self._moments.checkpoint_saved(self.state, row)
        self._follow()

    def _follow(self) -> None:
        """Write what hooks logged as a further row of the last step."""
        if self.state.has_logged:
            self._logged.follow(self.state.global_step - 1)

    def _name_loss(self, eval_name: str, loss: float) -> None:
        """Set `state.metrics["eval_loss"]` too, if only one eval reports a loss."""
        self._loss_evals.add(eval_name)
        if len(self._loss_evals) == 1:
            self.state.metrics[LOSS] = loss
        else:
            self.state.metrics.pop(LOSS, None)

    @contextlib.contextmanager
    def _pair(self, start: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
        self.state.exception = None  # an earlier exception was handled
        try:
            start()
            yield
        except BaseException as error:
            if self.state.exception is None:
                self.state.exception = error  # visible to hooks on the way out
            outcome = _run_during(error, end)
            if outcome is error:
                raise
            raise outcome from error
        else:
            end()


def _run_during(error: BaseException, action: Callable[[], Any]) -> BaseException:
    """Run an action while `error` propagates, and return the error to propagate: `error`, unless interrupted."""
    try:
        action()
    except BaseException as late:
        if isinstance(error, StopTraining) or (not isinstance(late, Exception) and isinstance(error, Exception)):
            return late
        note_failure(error, "while it was ending the run", late)
    return error


def _check_dict(who: str, metrics: object) -> None:
    if not isinstance(metrics, dict):
        raise TypeError(f"{who} must return its metrics as a dict, e.g. {{'loss': 0.5}}, not {metrics!r}")
