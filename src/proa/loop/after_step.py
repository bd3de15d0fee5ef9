"""What comes after a step: the evals that are due, then the checkpoint that is due."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ..data.loop import ManifestRow
from ..data.state import LoopState
from ..lifecycle.spans import Lifecycle

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluator:
    """A named score of the weights, taken when `(step_idx + 1) % run_every == 0` and of the final weights."""

    name: str
    score: Callable[[], dict[str, float]]
    run_every: int = 0
    baseline: bool = False
    """Also before the first step."""
    report: Callable[[], None] | None = None
    """Called after `eval_end`: tells of the eval as a whole, with its predictions."""
    begin: Callable[[], Callable[[], dict[str, float]]] | None = None
    """Of one that goes on in the background: takes the weights as they are, and returns what scores them."""
    wait: Callable[[Callable[[], dict[str, float]]], dict[str, float]] = lambda scores: scores()
    """Of the same: waits for its scores."""


class EvalUnderWay:
    """An eval that goes on in a thread of its own, on the weights after so many steps."""

    def __init__(self, evaluator: Evaluator, steps: int, score: Callable[[], dict[str, float]]) -> None:
        self.evaluator = evaluator
        self.steps = steps
        self._score = score
        self._scores: dict[str, float] = {}
        self._error: BaseException | None = None
        # A daemon: whoever leaves without waiting for it leaves as in a crash, and it comes again.
        self._thread = threading.Thread(target=self._run, name=f"eval {evaluator.name}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def scores(self) -> dict[str, float]:
        """What came of it, waited for; what it raised is raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._scores

    def give_up(self, seconds: float) -> None:
        """Wait for its end, so long at most."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._scores = self._score()
        except BaseException as error:  # raised where the scores are asked for
            self._error = error


LEAVING_SECONDS = 10.0
LoopStateDict: TypeAlias = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Resumed:
    """The checkpoint that a loop goes on from: what the loop had saved in it, and its row."""

    state: Mapping[str, Any]
    row: ManifestRow | None = None
    restore: Callable[[], None] = lambda: None
    """Puts back what the step works on, weights and optimizer. Called when all is made that is of the start alone."""

    @property
    def name(self) -> str:
        """What `state.resumed_from` says."""
        return self.row.name if self.row is not None else f"step_{self.state['loop']['global_step']}"


_OF_THIS_RUN = ("output_dir", "rank", "world_size", "resumed_from")
"""What of a state is not gone on with. That a stop was asked for is: the run would have ended there."""


def go_on_with(state: LoopState, resumed: Resumed) -> None:
    """Make a fresh state what it was when the checkpoint was written."""
    for name, value in resumed.state["loop"].items():
        if name not in _OF_THIS_RUN:
            setattr(state, name, value)
    state.resumed_from = resumed.name


@dataclass(frozen=True)
class Saver:
    """Writes a checkpoint by name and returns its row; due when `(step_idx + 1) % save_every == 0`.

    One that writes in the background returns None, and its rows come later.
    """

    save: Callable[[str, LoopState], ManifestRow | None]
    save_every: int = 0
    finished: Callable[[], list[ManifestRow]] = list
    """The rows that were written in the background since this was last asked."""
    drain: Callable[[], None] = lambda: None
    """Wait for what is being written."""
    mark_final: Callable[[str, dict[str, Any]], ManifestRow] | None = None
    """Make the checkpoint of that name the final one, with these metrics."""
    attach: Callable[[LoopStateDict], None] = lambda _: None
    """Told before the first step how to ask for what the loop needs to go on from a checkpoint."""
    resumed: Resumed | None = None
    """What the loop goes on from."""
    asked_to_leave: Callable[[], str] = str
    """Why the loop is to save and leave now; empty while it is not."""
    manager: Any = None
    """The `CheckpointManager` behind it, for hooks: `state.checkpoint_mgr`."""


class AfterStep:
    """Runs evals and checkpoints of one loop, and knows which it has had."""

    def __init__(
        self,
        life: Lifecycle,
        evaluators: Sequence[Evaluator],
        saver: Saver | None,
        loop_state: LoopStateDict = dict,
    ) -> None:
        self._rows: dict[str, ManifestRow] = {}
        self._life = life
        self._state = life.state
        self._evaluators = evaluators
        self._saver = saver
        self._saved_at = -1
        self._saved_as = ""
        self._evaluated_at: dict[str, int] = {}
        self._under_way: dict[str, EvalUnderWay] = {}
        self._untold: ManifestRow | None = None
        if saver is not None:
            saver.attach(loop_state)
            self._state.checkpoint_mgr = saver.manager

    @property
    def rows(self) -> list[ManifestRow]:
        """Of the checkpoints that this loop has saved, in their order."""
        return list(self._rows.values())

    def state_dict(self) -> dict[str, Any]:
        return {"evaluated_at": dict(self._evaluated_at)}

    def go_on(self, resumed: Resumed) -> None:
        """As it was when that checkpoint was written."""
        self._evaluated_at = dict(resumed.state["after"]["evaluated_at"])
        if (row := resumed.row) is not None:
            self._saved_at, self._saved_as, self._untold = row.step, row.name, row

    def before_the_first(self) -> None:
        """The baseline evals."""
        self._evaluate(lambda evaluator: evaluator.baseline)

    def tell_of_resumed(self) -> None:
        """`checkpoint_saved` of what the run goes on from: callbacks had not heard of it when their state was saved."""
        row, self._untold = self._untold, None
        if row is not None:
            self._tell(row)

    def what_is_due(self) -> None:
        """Evals first, so that the checkpoint's row and the callbacks' saved state know the scores."""
        self._tell_of_scored(wait=False)
        self._evaluate(lambda one: self._due(one.run_every, last=self._evaluated_at.get(one.name)))
        self._tell_of_finished()
        if self._saver and self._due(self._saver.save_every, last=self._saved_at):
            self._save(f"step_{self._state.global_step}")

    def save_now(self) -> None:
        """A checkpoint of where the run stands, on disk when this returns, whether or not one is due."""
        if self._saver is not None:
            if self._saved_at != self._state.global_step:
                self._save(f"step_{self._state.global_step}")
            self._drain()

    def leave_if_asked(self) -> None:
        """Save and raise `KeyboardInterrupt` if somebody asked for that."""
        reason = self._saver.asked_to_leave() if self._saver is not None else ""
        if reason:
            for one in (one for one in self._under_way.values() if not one.is_over):
                log.warning("waiting for the eval %s, which is under way", one.evaluator.name)
            self.save_now()
            raise KeyboardInterrupt(reason)

    def at_the_end(self) -> None:
        """Evals of the final weights, and the final checkpoint; what the last step had is not done twice."""
        self.tell_of_resumed()
        for evaluator in self._evaluators:
            self.leave_if_asked()  # these may be long, and nobody needs them of a run that is being left
            if self._evaluated_at.get(evaluator.name) != self._state.global_step:
                self._score(evaluator)
        self._tell_of_scored(wait=True)
        if self._saver is None:
            return
        self._drain()
        if self._saved_at != self._state.global_step:
            self._save("final")
            self._drain()
        elif self._saver.mark_final is not None:  # the evals at the end came after it was written
            self._note(self._saver.mark_final(self._saved_as, dict(self._state.metrics)))
        else:
            self.rows[-1].final = True
            self.rows[-1].metrics.update(self._state.metrics)

    def close(self) -> None:
        """Of a run that failed: wait a little for evals that nobody asks for, so that no thread is left behind."""
        for one in self._under_way.values():
            one.give_up(LEAVING_SECONDS)

    def _due(self, every: int, last: int | None) -> bool:
        """Once for each so many steps: a step that was left in its middle is not done, and the one before had it."""
        done = self._state.global_step
        return every > 0 and done > 0 and done % every == 0 and done != last

    def _evaluate(self, wanted: Callable[[Evaluator], bool]) -> None:
        for evaluator in self._evaluators:
            if wanted(evaluator):
                self._score(evaluator)

    def _score(self, evaluator: Evaluator) -> None:
        if evaluator.begin is not None:
            self._tell_of_scored(wait=True, name=evaluator.name)  # one at a time
            self._under_way[evaluator.name] = EvalUnderWay(evaluator, self._state.global_step, evaluator.begin())
        else:
            self._tell_of_eval(evaluator, evaluator.score, self._state.global_step)
        self._evaluated_at[evaluator.name] = self._state.global_step

    def _tell_of_scored(self, *, wait: bool, name: str | None = None) -> None:
        """The moments of evals that went on in the background, when their scores are there."""
        for one in [one for one in self._under_way.values() if name in (None, one.evaluator.name)]:
            if wait or one.is_over:
                del self._under_way[one.evaluator.name]
                self._tell_of_eval(one.evaluator, partial(one.evaluator.wait, one.scores), one.steps)

    def _tell_of_eval(self, evaluator: Evaluator, score: Callable[[], dict[str, float]], steps: int) -> None:
        with self._life.evaluation(evaluator.name, steps - 1) as evaluation:
            evaluation.metrics = score()
        if evaluator.report is not None:
            evaluator.report()

    def _save(self, name: str) -> None:
        assert self._saver is not None
        self._tell_of_scored(wait=True)  # the row and the callbacks' saved state know the scores
        self._drain()  # callbacks hear of a checkpoint before their state goes into the next
        row = self._saver.save(name, self._state)
        self._saved_at, self._saved_as = self._state.global_step, name
        if row is not None:
            row.final = name == "final"
            self._tell(row)

    def _drain(self) -> None:
        if self._saver is not None:
            self._saver.drain()
            self._tell_of_finished()

    def _tell_of_finished(self) -> None:
        for row in self._saver.finished() if self._saver is not None else ():
            self._tell(row)

    def _tell(self, row: ManifestRow) -> None:
        self._note(row)
        self._life.checkpoint_saved(row)

    def _note(self, row: ManifestRow) -> None:
        """A row of a name that is there already takes its place."""
        self._rows.pop(row.name, None)
        self._rows[row.name] = row
