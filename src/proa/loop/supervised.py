"""`SupervisedLoop`: any training step, run with the whole lifecycle around it.

It fires what a detached trainer fires, without episodes and weight updates: supervised recipes use it,
and so can a loop of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from ..actors.activity import Activity
from ..data.loop import ManifestRow, TrainingBatch
from ..data.state import LoopState
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.roles import Role
from ..lifecycle.spans import Lifecycle
from .after_step import AfterStep
from .artifacts import loop_artifacts
from .evaluators import Evaluator
from .savers import Resumed, Saver
from .trained_steps import TrainedSteps

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
        self.manager = CallbackManager.create(callbacks, role=Role.TRAINER)
        self.evaluators = evaluators
        self.saver = saver
        self.output_dir = None if output_dir is None else Path(output_dir)
        self.state = LoopState(output_dir=self.output_dir)
        self.activity = Activity()
        self._after: AfterStep | None = None
        self._within_epoch = False
        self._trained_steps = TrainedSteps()
        self._resumed: Resumed | None = None

    def fit(
        self, batches: Callable[[int], Iterable[TrainingBatch]], *, num_epochs: int = 1, max_steps: int = -1
    ) -> LoopState:
        """Train for `num_epochs` passes over `batches(epoch)`, or `max_steps` steps if that is less."""
        if not callable(batches):
            raise TypeError("batches is called with each epoch's number: write lambda epoch: batches")
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            self._trained_steps = TrainedSteps()
            self.state = LoopState(
                num_epochs=num_epochs, max_steps=max_steps, num_steps=max(max_steps, 0), output_dir=self.output_dir
            )
        state = self.state
        is_longer = resumed is not None and max_steps > state.max_steps  # than when it was saved
        if is_longer:
            state.max_steps = state.num_steps = max_steps
        life = Lifecycle(self.manager, state)
        self._after = after = AfterStep(life, self.evaluators, self.saver, self)
        begun = perf_counter()
        training = life.training(lambda: loop_artifacts(state, self.manager, after.rows, begun))
        with closing(after), training:
            if resumed is None:
                after.run_baselines()
            else:
                after.resume(resumed)
            for epoch, done in self._epochs_left(num_epochs, resumed, is_longer):
                if _over(state) and not done:
                    break
                with self._epoch_span(life, epoch, done):
                    after.announce_resumed()
                    if not (done and _over(state)):  # else it was ending when its checkpoint was written
                        self._epoch(islice(batches(epoch), done, None), life, after)
            self._trained_steps.refuse_idle_run(state.global_step)
            after.run_final()
        return state

    def state_dict(self) -> dict[str, Any]:
        """Between two steps, all that a resumed loop needs; the place in the epoch is in the state."""
        assert self._after is not None, "a loop has a state while it runs"
        return {
            "loop": self.state.to_dict(),
            "within_epoch": self._within_epoch,
            "trained_steps": self._trained_steps.state_dict(),
            "after": self._after.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any], row: ManifestRow | None = None) -> None:
        """Have the next `fit`, with the same batches and numbers, continue from there. `row` is the checkpoint's."""
        self._resumed = Resumed(saved, row)
        self.state = LoopState(output_dir=self.output_dir)
        self._resumed.restore(self.state)
        self._trained_steps = TrainedSteps.from_saved(saved.get("trained_steps"))

    def stop_if_requested(self) -> None:
        """Save and raise `KeyboardInterrupt` if the saver has a stop request."""
        if self.saver is not None and self.saver.stop.reason:
            assert self._after is not None, "it is called while it runs"
            self._after.save_before_leaving()
            raise KeyboardInterrupt(self.saver.stop.reason)

    def _epochs_left(self, count: int, resumed: Resumed | None, is_longer: bool) -> Iterator[tuple[int, int]]:
        """The remaining epochs, and how many steps of each are done."""
        first, done = 0, 0
        if resumed is not None:
            if not resumed.state["within_epoch"] and not is_longer:
                return  # it was the final checkpoint
            first, done = self.state.epoch, self.state.step
        for epoch in range(first, count):
            yield epoch, done
            done = 0

    @contextmanager
    def _epoch_span(self, life: Lifecycle, epoch: int, done: int) -> Iterator[None]:
        with life.epoch(epoch, first_step=done):
            self._within_epoch = True
            try:
                yield
            finally:
                self._within_epoch = False

    def _epoch(self, batches: Iterable[TrainingBatch], life: Lifecycle, after: AfterStep) -> None:
        for batch in batches:
            with life.step() as step:
                step.batch = batch
                with self.activity.doing("compute", f"computing step {step.index + 1}"):
                    step.metrics = self.training_step(batch)
                if isinstance(step.metrics, dict):  # else the step raises
                    self._trained_steps.note(step.index, step.metrics)
            after.run_due()
            self.stop_if_requested()
            if _over(life.state):
                break


def _over(state: LoopState) -> bool:
    return state.should_stop or 0 <= state.max_steps <= state.global_step
