"""`SupervisedLoop`: any training step, run with the whole lifecycle around it.

It fires what a detached trainer fires, without episodes and weight updates: supervised recipes use it,
and so can a loop of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

from ..data.loop import LoopArtifacts, ManifestRow, TrainingBatch
from ..data.state import LoopState
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.roles import Role
from ..lifecycle.spans import Lifecycle

TrainingStep: TypeAlias = Callable[[TrainingBatch], dict[str, float]]
"""Takes one optimizer step and returns its metrics: `loss`, and `learning_rate`, `grad_norm`, …"""


@dataclass(frozen=True)
class Evaluator:
    """A named score of the weights, taken when `(step_idx + 1) % run_every == 0` and of the final weights."""

    name: str
    score: Callable[[], dict[str, float]]
    run_every: int = 0
    baseline: bool = False
    """Also before the first step."""


@dataclass(frozen=True)
class Saver:
    """Writes a checkpoint by name and returns its row; due when `(step_idx + 1) % save_every == 0`."""

    save: Callable[[str, LoopState], ManifestRow]
    save_every: int = 0


class SupervisedLoop:
    """Runs a training step over batches, with callbacks, evals, checkpoints and early stop.

    >>> def training_step(batch):
    ...     return {"loss": 1.0 / batch.data}
    >>> loop = SupervisedLoop(training_step)
    >>> state = loop.fit(lambda epoch: [TrainingBatch(1), TrainingBatch(2)], num_epochs=3, max_steps=5)
    >>> state.global_step, state.metrics["loss"]
    (5, 1.0)
    """

    def __init__(
        self,
        training_step: TrainingStep,
        *,
        callbacks: Callbacks = None,
        evaluators: Sequence[Evaluator] = (),
        saver: Saver | None = None,
        output_dir: Path | str | None = None,
    ) -> None:
        self.training_step = training_step
        self.manager = CallbackManager.of(callbacks, role=Role.TRAINER)
        self.evaluators = evaluators
        self.saver = saver
        self.output_dir = None if output_dir is None else Path(output_dir)

    def fit(
        self, batches: Callable[[int], Iterable[TrainingBatch]], *, num_epochs: int = 1, max_steps: int = -1
    ) -> LoopState:
        """Train for `num_epochs` passes over `batches(epoch)`, or `max_steps` steps if that is less."""
        if not callable(batches):
            raise TypeError("batches is called with each epoch's number: write lambda epoch: batches")
        state = LoopState(
            num_epochs=num_epochs, max_steps=max_steps, num_steps=max(max_steps, 0), output_dir=self.output_dir
        )
        run = _Run(self, Lifecycle(self.manager, state))
        with run.life.training(run.artifacts):
            run.evaluate(lambda evaluator: evaluator.baseline)
            for epoch in range(num_epochs):
                if run.over:
                    break
                with run.life.epoch(epoch):
                    run.epoch(batches(epoch))
            run.evaluate(run.not_evaluated_yet)
            run.save_final()
        return state


class _Run:
    """One call of `fit`: what it has evaluated and saved so far."""

    def __init__(self, loop: SupervisedLoop, life: Lifecycle) -> None:
        self.loop = loop
        self.life = life
        self.state = life.state
        self.rows: list[ManifestRow] = []
        self.saved_at = -1
        self.evaluated_at: dict[str, int] = {}
        self.begun = perf_counter()

    @property
    def over(self) -> bool:
        state = self.state
        return state.should_stop or 0 <= state.max_steps <= state.global_step

    def epoch(self, batches: Iterable[TrainingBatch]) -> None:
        for batch in batches:
            with self.life.step() as step:
                step.batch = batch
                step.metrics = self.loop.training_step(batch)
            self.evaluate(lambda evaluator: _due(evaluator.run_every, self.state))
            if self.loop.saver and _due(self.loop.saver.save_every, self.state):
                self.save(f"step_{self.state.global_step}")
            if self.over:
                break

    def evaluate(self, wanted: Callable[[Evaluator], bool]) -> None:
        for evaluator in self.loop.evaluators:
            if wanted(evaluator):
                with self.life.evaluation(evaluator.name) as evaluation:
                    evaluation.metrics = evaluator.score()
                self.evaluated_at[evaluator.name] = self.state.global_step

    def not_evaluated_yet(self, evaluator: Evaluator) -> bool:
        return self.evaluated_at.get(evaluator.name) != self.state.global_step

    def save(self, name: str) -> None:
        assert self.loop.saver is not None
        row = self.loop.saver.save(name, self.state)
        row.final = name == "final"
        self.rows.append(row)
        self.saved_at = self.state.global_step
        self.life.checkpoint_saved(row)

    def save_final(self) -> None:
        if self.loop.saver is None:
            return
        if self.saved_at == self.state.global_step:
            self.rows[-1].final = True
            self.rows[-1].metrics.update(self.state.metrics)  # the evals at the end came after it was written
        else:
            self.save("final")

    def artifacts(self) -> LoopArtifacts:
        state = self.state
        return LoopArtifacts(
            run_dir=state.output_dir,
            checkpoints=self.rows,
            total_requested_steps=state.num_steps,
            train_seconds=perf_counter() - self.begun,
            steps_run=state.global_step,
            stop_reason=state.stop_reason,
            stopped_by=state.stopped_by,
            callback_errors=self.life.manager.errors,
        )


def _due(every: int, state: LoopState) -> bool:
    return every > 0 and state.global_step % every == 0
