"""What comes after a step: the evals that are due, then the checkpoint that is due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..data.loop import ManifestRow
from ..data.state import LoopState
from ..lifecycle.spans import Lifecycle


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


class AfterStep:
    """Runs evals and checkpoints of one loop, and knows which it has had."""

    def __init__(self, life: Lifecycle, evaluators: Sequence[Evaluator], saver: Saver | None) -> None:
        self.rows: list[ManifestRow] = []
        self._life = life
        self._state = life.state
        self._evaluators = evaluators
        self._saver = saver
        self._saved_at = -1
        self._evaluated_at: dict[str, int] = {}

    def before_the_first(self) -> None:
        """The baseline evals."""
        self._evaluate(lambda evaluator: evaluator.baseline)

    def what_is_due(self) -> None:
        """Evals first, so that the checkpoint's row and the callbacks' saved state know the scores."""
        self._evaluate(lambda evaluator: self._due(evaluator.run_every))
        if self._saver and self._due(self._saver.save_every):
            self._save(f"step_{self._state.global_step}")

    def at_the_end(self) -> None:
        """Evals of the final weights, and the final checkpoint; what the last step had is not done twice."""
        self._evaluate(lambda evaluator: self._evaluated_at.get(evaluator.name) != self._state.global_step)
        if self._saver is None:
            return
        if self._saved_at == self._state.global_step:
            self.rows[-1].final = True
            self.rows[-1].metrics.update(self._state.metrics)  # the evals at the end came after it was written
        else:
            self._save("final")

    def _due(self, every: int) -> bool:
        return every > 0 and self._state.global_step % every == 0

    def _evaluate(self, wanted: Callable[[Evaluator], bool]) -> None:
        for evaluator in self._evaluators:
            if wanted(evaluator):
                with self._life.evaluation(evaluator.name) as evaluation:
                    evaluation.metrics = evaluator.score()
                self._evaluated_at[evaluator.name] = self._state.global_step

    def _save(self, name: str) -> None:
        assert self._saver is not None
        row = self._saver.save(name, self._state)
        row.final = name == "final"
        self.rows.append(row)
        self._saved_at = self._state.global_step
        self._life.checkpoint_saved(row)
