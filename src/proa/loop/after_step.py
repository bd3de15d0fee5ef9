"""After a step: the evals that are due, then the checkpoint that is due."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from ..data.loop import ManifestRow
from ..lifecycle.spans import Lifecycle
from .evaluators import BackgroundScoring, Evaluator, ScheduledEval
from .savers import Resumed, SavedLoop, Saver

log = logging.getLogger("proa.loop")

LEAVING_SECONDS = 10.0


class AfterStep:
    """Runs the evals and checkpoints of one loop, each once per step."""

    def __init__(
        self, life: Lifecycle, evaluators: Sequence[ScheduledEval], saver: Saver | None, loop: SavedLoop
    ) -> None:
        self._rows: dict[str, ManifestRow] = {}
        self._life = life
        self._state = life.state
        self._evaluators = evaluators
        self._saver = saver
        self._loop = loop
        self._activity = loop.activity
        self._saved_at = -1
        self._saved_as = ""
        self._evaluated_at: dict[str, int] = {}
        self._under_way: dict[str, BackgroundScoring] = {}
        self._unannounced: ManifestRow | None = None
        if saver is not None:
            saver.attach(loop)
            self._state.checkpoint_mgr = saver.manager

    @property
    def rows(self) -> list[ManifestRow]:
        """The rows of the checkpoints that this loop has saved, in their order."""
        return list(self._rows.values())

    def state_dict(self) -> dict[str, Any]:
        return {"evaluated_at": dict(self._evaluated_at)}

    def resume(self, resumed: Resumed) -> None:
        """Continue from a checkpoint: what was evaluated and saved before it stays done."""
        self._evaluated_at = dict(resumed.state["after"]["evaluated_at"])
        if (row := resumed.row) is not None:
            self._saved_at, self._saved_as, self._unannounced = row.step, row.name, row

    def run_baselines(self) -> None:
        """Run the evals that come before the first step."""
        self._evaluate(lambda evaluator: evaluator.baseline)

    def announce_resumed(self) -> None:
        """Fire `checkpoint_saved` for the checkpoint that the run continues from: the callbacks' saved state is from
        before that."""
        row, self._unannounced = self._unannounced, None
        if row is not None:
            self._announce(row)

    def run_due(self) -> None:
        """Run what is due: evals first, so that the checkpoint's row and the callbacks' saved state have the scores."""
        self._report_scored(wait=False)
        self._evaluate(lambda one: self._is_due(one.run_every, last=self._evaluated_at.get(one.name)))
        self._announce_finished()
        if self._saver and self._is_due(self._saver.save_every, last=self._saved_at):
            self._save(f"step_{self._state.global_step}")

    def save_now(self) -> None:
        """Save a checkpoint of the current step, due or not; it is on disk when this returns."""
        if self._saver is not None:
            if self._saved_at != self._state.global_step:
                self._save(f"step_{self._state.global_step}")
            self._drain()

    def save_before_leaving(self) -> None:
        """Save, with the scores of evals that are under way."""
        for one in (one for one in self._under_way.values() if not one.is_over):
            log.warning("waiting for the eval %s, which is under way", one.evaluator.name)
        self.save_now()

    def run_final(self) -> None:
        """Run the evals of the final weights and save the final checkpoint, unless the last step did."""
        self.announce_resumed()
        for evaluator in self._evaluators:
            self._loop.stop_if_requested()  # they may be long, and a stopped run does not need them
            if self._evaluated_at.get(evaluator.name) != self._state.global_step:
                self._score(evaluator)
        self._report_scored(wait=True)
        if self._saver is None:
            return
        self._drain()
        manager = self._saver.manager
        removed = manager is not None and all(row.name != self._saved_as for row in manager.rows)  # by a hook
        if self._saved_at == self._state.global_step and removed and self._state.world_size > 1:
            # Trainers save together, and the other ranks did not see the removal.
            log.warning("checkpoint %s was removed by a hook: the run has no final checkpoint", self._saved_as)
            return
        if self._saved_at != self._state.global_step or removed:
            self._save("final")
            self._drain()
            return
        row = self._saver.mark_final(self._saved_as, dict(self._state.metrics))
        if row is not None:  # with the scores of the evals since
            self._note(row)
        elif self._rows:
            self.rows[-1].final = True
            self.rows[-1].metrics.update(self._state.metrics)

    def close(self) -> None:
        """Wait a little for evals that are still under way in a run that failed, so that no thread is left behind."""
        for one in self._under_way.values():
            one.give_up(LEAVING_SECONDS)

    def _is_due(self, every: int, last: int | None) -> bool:
        """Whether `every` divides the steps done, and this was not run after this step already, which is so if a later
        step was left in its middle."""
        done = self._state.global_step
        return every > 0 and done > 0 and done % every == 0 and done != last

    def _evaluate(self, wanted: Callable[[ScheduledEval], bool]) -> None:
        for evaluator in self._evaluators:
            if wanted(evaluator):
                self._score(evaluator)

    def _score(self, evaluator: ScheduledEval) -> None:
        steps = self._state.global_step
        evaluator.run(self, steps)
        self._evaluated_at[evaluator.name] = steps

    def score_apart(self, evaluator: Evaluator, steps: int) -> None:
        """Score in the background, one at a time."""
        self._report_scored(wait=True, name=evaluator.name)
        with self._activity.doing("eval", f"evaluating {evaluator.name}"):
            scoring = evaluator.begin(self._state)
        self._under_way[evaluator.name] = BackgroundScoring(evaluator, steps, scoring)

    def score_now(self, evaluator: Evaluator, steps: int) -> None:
        doing = self._activity.doing("eval", f"evaluating {evaluator.name}")
        with self._life.evaluation(evaluator.name, steps - 1) as evaluation, doing:
            scoring = evaluator.begin(self._state)
            evaluation.metrics = scoring.score()
        scoring.report()

    def _report_scored(self, *, wait: bool, name: str | None = None) -> None:
        """Fire the moments of background evals that have finished, or of all after waiting for them."""
        for one in [one for one in self._under_way.values() if name in (None, one.evaluator.name)]:
            if wait or one.is_over:
                del self._under_way[one.evaluator.name]
                doing = self._activity.doing("eval", f"evaluating {one.evaluator.name}")
                with self._life.evaluation(one.evaluator.name, one.steps - 1) as evaluation, doing:
                    evaluation.metrics = one.scores()
                one.scoring.report()

    def _save(self, name: str) -> None:
        assert self._saver is not None
        self._report_scored(wait=True)  # so that the row and the callbacks' saved state have the scores
        self._drain()  # callbacks hear of each checkpoint before the next has their state
        with self._activity.doing("save", "saving a checkpoint"):
            row = self._saver.save(name, self._state)
        self._saved_at, self._saved_as = self._state.global_step, name
        if row is not None:
            row.final = name == "final"
            self._announce(row)

    def _drain(self) -> None:
        if self._saver is not None:
            self._saver.drain()
            self._announce_finished()

    def _announce_finished(self) -> None:
        for row in self._saver.finished() if self._saver is not None else ():
            self._announce(row)

    def _announce(self, row: ManifestRow) -> None:
        self._note(row)
        self._life.checkpoint_saved(row)

    def _note(self, row: ManifestRow) -> None:
        """Keep a row; it replaces an earlier one of its name."""
        self._rows.pop(row.name, None)
        self._rows[row.name] = row
