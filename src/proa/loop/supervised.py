"""`SupervisedLoop`: any training step, run with the whole lifecycle around it.

It fires what a detached trainer fires, without episodes and weight updates: supervised recipes use it,
and so can a loop of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

from ..data.loop import LoopArtifacts, ManifestRow, TrainingBatch
from ..data.state import LoopState
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.roles import Role
from ..lifecycle.spans import Lifecycle
from .after_step import AfterStep, Evaluator, Saver

TrainingStep: TypeAlias = Callable[[TrainingBatch], dict[str, float]]
"""Takes one optimizer step and returns its metrics: `loss`, and `learning_rate`, `grad_norm`, …"""


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
        life = Lifecycle(self.manager, state)
        after = AfterStep(life, self.evaluators, self.saver)
        begun = perf_counter()
        with life.training(lambda: artifacts_of(state, self.manager, after.rows, begun)):
            after.before_the_first()
            for epoch in range(num_epochs):
                if _over(state):
                    break
                with life.epoch(epoch):
                    self._epoch(batches(epoch), life, after)
            after.at_the_end()
        return state

    def _epoch(self, batches: Iterable[TrainingBatch], life: Lifecycle, after: AfterStep) -> None:
        for batch in batches:
            with life.step() as step:
                step.batch = batch
                step.metrics = self.training_step(batch)
            after.what_is_due()
            if _over(life.state):
                break


def artifacts_of(
    state: LoopState, manager: CallbackManager, checkpoints: list[ManifestRow], begun: float
) -> LoopArtifacts:
    """What a loop leaves behind, as its state says at the end."""
    return LoopArtifacts(
        run_dir=state.output_dir,
        checkpoints=checkpoints,
        total_requested_steps=state.num_steps,
        train_seconds=perf_counter() - begun,
        steps_run=state.global_step,
        stop_reason=state.stop_reason,
        stopped_by=state.stopped_by,
        callback_errors=manager.errors,
    )


def _over(state: LoopState) -> bool:
    return state.should_stop or 0 <= state.max_steps <= state.global_step
