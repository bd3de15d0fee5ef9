"""What the loggers have in common: when a run is opened with their library, what is sent to it, when it is closed.

A plain run is opened at `train_start` and closed at `train_end`. In an experiment it is closed at `run_end`, so that
the benchmarks after training are part of it. It is opened at `run_start` if its files go to a folder of many runs; its
own folder is made later and must be empty then, so that one waits for `train_start`, and so does one of which an
earlier try left something: only then is it known whether the run goes on or begins again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ..data.loop import LoopArtifacts, ManifestRow, TrainingBatch
from ..data.results import ArmResult, EvalResult, ExperimentResult, LogContext, RunResult, Status
from ..data.state import LoopState
from ..errors import CallbackConfigError
from ..lifecycle.hooks import Callback
from ..lifecycle.policy import ErrorPolicy, Priority
from ..private_files import make_private_folder
from .logged_values import Table, error_text, plain_values, table_of
from .run_place import Place, Wanted, id_of, require


class RunLogger(Callback):
    """Tells a library of a run. A kind of logger says how a run is opened, written to and closed with it.

    `folder` takes the place of the run's own folder, `project` of the experiment's name; `predictions` is how many
    rows of a benchmark's predictions are shown, evenly spread; 0 shows none.
    """

    priority = Priority.LOGGING
    error_policy = ErrorPolicy.DISABLE
    kind: ClassVar[str]
    package: ClassVar[str]

    def __init__(
        self,
        *,
        project: str | None = None,
        group: str | None = None,
        folder: str | Path | None = None,
        predictions: int = 50,
        state_key: str | None = None,
    ) -> None:
        require(self.package, self.kind)
        if predictions < 0:
            raise CallbackConfigError(f"predictions={predictions}: show so many rows of a benchmark, 0 or more")
        self._wanted = Wanted(self.kind, project, group, None if folder is None else Path(folder))
        self._predictions = predictions
        self.state_key = state_key or self.kind
        self._ctx: LogContext | None = None
        self._place: Place | None = None
        self._saved_id: str | None = None
        self._steps_done = 0
        self.run_id: str | None = None
        self._tried = False
        self._last: dict[str, int] = {}

    # -- when: the hooks -----------------------------------------------------------------------------------

    def on_experiment_start(self, ctx: LogContext) -> None:
        ctx.ids.setdefault("experiment_id", id_of(ctx.output_dir))

    def on_group_start(self, ctx: LogContext, group_name: str) -> None:
        ctx.ids.setdefault(f"group:{group_name}", group_name)  # each library calls a group by its name

    def on_run_start(self, ctx: LogContext) -> None:
        self._end("cancelled")
        self._ctx = ctx
        self._steps_done = 0
        self._place = self._wanted.place_in_experiment(ctx)
        if self._place.shared and self._earlier_id(self._place) is None:
            self._begin(self._place)

    def on_train_start(self, state: LoopState) -> None:
        self._steps_done = state.global_step
        first_step = state.global_step if state.resumed_from else -1  # a baseline eval stands before step 0
        place = self._place if self._ctx is not None and self._place is not None else self._wanted.place_of(state)
        if self.run_id is not None and place == self._place:
            if self._last:  # the trainer died and was started again, or the run in an experiment begins again
                self._rewind(first_step)
            return
        self._end("cancelled")
        self._place = place
        earlier = (self._saved_id or self._earlier_id(place)) if state.resumed_from else None
        self._begin(place, earlier, first_step)
        if state.ctx is not None and self._ctx is None:
            self._tell_ids(state.ctx)

    def on_step_end(self, state: LoopState, step_idx: int, batch: TrainingBatch, metrics: dict[str, float]) -> None:
        if state.exception is None:  # a step that was cut short has no metrics
            self._steps_done = step_idx + 1
            self._log(metrics, step_idx)

    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        if state.exception is None:
            self._log({f"{eval_name}.{name}": value for name, value in metrics.items()}, step_idx)

    def on_checkpoint(self, state: LoopState, row: ManifestRow) -> None:
        if self.run_id is not None and self._is_new(key := f"checkpoint {row.name}", row.batch):
            where = row.sampler_path or row.state_path
            self._write_checkpoint(
                row.name, {"step": row.step, "path": where, "final": row.final, **plain_values(row.metrics)}, row.batch
            )
            self._note({key: None}, row.batch)

    def on_benchmark_eval(
        self, ctx: LogContext, eval_result: EvalResult, predictions: list[dict[str, Any]], *, step: int | None = None
    ) -> None:
        self._ensure_open()
        at = self._steps_done if step is None else step  # after training: where the next step would stand
        self._log({f"{eval_result.name}.{name}": value for name, value in eval_result.metrics.items()}, at)
        name = f"{eval_result.name}.predictions"
        if self.run_id is not None and predictions and self._predictions and self._is_new(name, at):
            self._write_table(name, table_of(predictions, self._predictions), at)
            self._note({name: None}, at)

    def on_exception(self, state: LoopState, exception: BaseException) -> None:
        if self.run_id is not None:
            self._write_error(error_text(exception), self._steps_done)

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        if self._ctx is not None:
            return  # run_end will come
        failed, interrupted = isinstance(state.exception, Exception), state.exception is not None
        status: Status = "failed" if failed else "cancelled" if interrupted else "completed"
        summary = {"status": status, "steps_run": state.global_step, "stop_reason": state.stop_reason}
        self._end(status, plain_values({name: value for name, value in summary.items() if value is not None}))
        self._place = None

    def on_run_end(self, ctx: LogContext, run_result: RunResult | None, arm: ArmResult | None) -> None:
        self._ensure_open()
        results = [result for result in (run_result, arm) if result is not None]
        status: Status = results[0].status if results else "failed"
        summary: dict[str, Any] = {"status": status}
        for result in results:
            summary |= plain_values(result.metrics)
            if result.error:
                summary["error"] = error_text(result.error)
        if arm is not None:
            summary |= plain_values(_scores(arm))
        self._ctx = None
        self._end(status, summary)
        self._place = None

    def on_experiment_end(self, ctx: LogContext, result: ExperimentResult) -> None:
        """The arms beside each other, as a run of their own that has the experiment's name."""
        self._end("cancelled")
        place = self._wanted.place_of_result(ctx, result.name)
        self._begin(place, self._earlier_id(place))
        arms = [{"arm": arm.name, "status": arm.status, **arm.metrics, **_scores(arm)} for arm in result.arms]
        if arms:
            self._write_table("arms", table_of(arms, len(arms)), 0)
        facts = {"status": result.status, "best_arm": result.best_arm, "best_score": result.best_score,
                 "conclusion": result.conclusion, "hypothesis": result.hypothesis}  # fmt: skip
        self._end(result.status, plain_values({name: fact for name, fact in facts.items() if fact is not None}))

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self._saved_id = saved["run_id"]

    # -- how: what a kind of logger says -------------------------------------------------------------------

    def _open(self, place: Place, run_id: str | None, first_step: int) -> str:
        """Open a run, or go on with the one of that id, and return its id. Nothing from `first_step` on is valid."""
        raise NotImplementedError

    def _write(self, values: dict[str, Any], step: int) -> None:
        """One row of numbers and texts."""
        raise NotImplementedError

    def _write_table(self, name: str, table: Table, step: int) -> None:
        raise NotImplementedError

    def _write_checkpoint(self, name: str, facts: dict[str, Any], step: int) -> None:
        """Where a checkpoint lies, and its scores; the checkpoint itself stays where it is."""
        raise NotImplementedError

    def _write_error(self, text: str, step: int) -> None:
        raise NotImplementedError

    def _close(self, status: Status, summary: dict[str, Any]) -> None:
        raise NotImplementedError

    def _earlier_id(self, place: Place) -> str | None:
        """The id of the run that an earlier try left there."""
        raise NotImplementedError

    def _logged_before(self, place: Place, run_id: str) -> dict[str, int]:
        """For each metric of a run that goes on, the last step that it was logged at."""
        return {}

    def _remember(self, place: Place, run_id: str, last: Mapping[str, int]) -> None:
        """Keep for a run that goes on what `_earlier_id` and `_logged_before` will be asked, where nobody else does."""

    def _rewind(self, first_step: int) -> None:
        """Steps from this one on come again. Those that were logged are not logged twice."""

    # -- in between ----------------------------------------------------------------------------------------

    def _begin(self, place: Place, earlier: str | None = None, first_step: int = -1) -> None:
        self._forget_run()
        self._tried = True  # a library that could not open the run once is not asked again at each step
        make_private_folder(place.folder)
        run_id = self._open(place, earlier, first_step)
        if run_id == earlier:
            self._last = self._logged_before(place, run_id)
        self.run_id = run_id
        self._remember(place, run_id, self._last)
        if self._ctx is not None:
            self._tell_ids(self._ctx)

    def _ensure_open(self) -> None:
        """For what comes without training: only the benchmarks of a run that was trained before, or its end."""
        place = self._place
        began = place is not None and (place.shared or place.folder.parent.is_dir())
        if place is not None and began and self.run_id is None and not self._tried:
            self._begin(place, self._earlier_id(place), sys.maxsize)

    def _end(self, status: Status, summary: dict[str, Any] | None = None) -> None:
        is_open = self.run_id is not None
        self._forget_run()
        if is_open:
            self._close(status, summary or {"status": status})

    def _forget_run(self) -> None:
        self.run_id = None
        self._tried = False
        self._last = {}

    def _log(self, metrics: Mapping[str, Any], step: int) -> None:
        if self.run_id is None:
            return
        new = {name: value for name, value in metrics.items() if self._is_new(name, step)}
        if new:
            self._write(plain_values(new), step)
            self._note(new, step)

    def _is_new(self, name: str, step: int) -> bool:
        last = self._last.get(name)
        return last is None or step > last

    def _note(self, names: Mapping[str, Any], step: int) -> None:
        self._last.update(dict.fromkeys(names, step))
        assert self._place is not None
        assert self.run_id is not None
        self._remember(self._place, self.run_id, self._last)

    def _tell_ids(self, ctx: LogContext) -> None:
        ctx.ids[f"{self.kind}:run_id"] = self.run_id
        ctx.ids.setdefault("run_id", self.run_id)


def _scores(arm: ArmResult) -> dict[str, Any]:
    """What its benchmarks gave, as `benchmark.metric`."""
    return {f"{name}.{metric}": value for name, scores in arm.eval_metrics.items() for metric, value in scores.items()}
