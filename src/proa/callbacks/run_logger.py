"""The base of all loggers: when a run is opened with a library, what is sent to it, and when it is closed.

A run is opened at `run_start` and closed at `run_end`. A loop of one's own that fires only the moments of training is
opened at `train_start` and closed at `train_end`.
"""

from __future__ import annotations

from abc import abstractmethod
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
from .destination import Destination, DestinationSettings, experiment_id, require
from .logged_values import Plain, Table, error_text, eval_metrics, plain_values, sample_table


class RunLogger(Callback):
    """Logs runs with a library. A subclass defines how a run is opened, written to and closed.

    `folder` replaces the run's own folder, `project` the experiment's name; `predictions` is how many rows of a
    benchmark's predictions are logged, evenly spread.
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
            raise CallbackConfigError(f"predictions must be at least 0, not {predictions}")
        self._destination_settings = DestinationSettings(
            self.kind, project, group, None if folder is None else Path(folder)
        )
        self._predictions = predictions
        self.state_key = state_key or self.kind
        self._ctx: LogContext | None = None
        self._destination: Destination | None = None
        self._saved_id: str | None = None
        self._steps_done = 0
        self.run_id: str | None = None
        self._last: dict[str, int] = {}
        """The last step at which each metric was logged, in earlier processes too."""
        self._logged: dict[str, tuple[int, object]] = {}
        """The last values that this process logged, with their steps."""

    # -- hooks ---------------------------------------------------------------------------------------------

    def on_experiment_start(self, ctx: LogContext) -> None:
        ctx.ids.setdefault("experiment_id", experiment_id(ctx.output_dir))

    def on_group_start(self, ctx: LogContext, group_name: str) -> None:
        ctx.ids.setdefault(f"group:{group_name}", group_name)  # libraries know a group by its name

    def on_run_start(self, ctx: LogContext) -> None:
        self._end("cancelled")
        self._ctx = ctx
        self._steps_done = ctx.extras.get("steps_done", 0)
        destination = self._destination_settings.arm_destination(ctx)
        if destination.shared or ctx.output_dir.is_dir():  # a run that was refused has no folder
            self._begin(destination, resumed=ctx.extras.get("resumed_from") is not None)
            self._share_ids(ctx)

    def on_train_start(self, state: LoopState) -> None:
        self._steps_done = state.global_step
        if self._ctx is None:  # a loop of one's own
            self._end("cancelled")
            destination = self._destination_settings.run_destination(state)
            self._begin(destination, resumed=state.resumed_from is not None)
        elif self.run_id is not None and self._last:  # the trainer was restarted
            self._rewind(_first_step(state.global_step, resumed=state.resumed_from is not None))

    def on_step_end(self, state: LoopState, step_idx: int, batch: TrainingBatch, metrics: dict[str, float]) -> None:
        if state.exception is None:  # an interrupted step has no metrics
            self._steps_done = step_idx + 1
            self._log(metrics, step_idx)

    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        if state.exception is None:
            self._log(eval_metrics(state, eval_name, metrics), step_idx)

    def on_metrics(self, state: LoopState, step_idx: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            step, logged = self._logged.get(name, (None, None))
            if step == step_idx and logged != value:  # a later value of the same step replaces it
                self._last[name] = step_idx - 1
        self._log(metrics, step_idx)

    def on_checkpoint(self, state: LoopState, row: ManifestRow) -> None:
        if self.run_id is not None and self._is_new(key := f"checkpoint {row.name}", row.batch):
            where = row.sampler_path or row.state_path
            self._write_checkpoint(
                row.name, {"step": row.step, "path": where, "final": row.final, **plain_values(row.metrics)}, row.batch
            )
            self._note_logged({key: None}, row.batch)

    def on_benchmark_eval(
        self, ctx: LogContext, eval_result: EvalResult, predictions: list[dict[str, Any]], *, step: int | None = None
    ) -> None:
        at = self._steps_done if step is None else step  # after training: the index of the next step
        self._log({f"{eval_result.name}.{name}": value for name, value in eval_result.metrics.items()}, at)
        name = f"{eval_result.name}.predictions"
        if self.run_id is not None and predictions and self._predictions and self._is_new(name, at):
            self._write_table(name, sample_table(predictions, self._predictions), at)
            self._note_logged({name: None}, at)

    def on_exception(self, state: LoopState, exception: BaseException) -> None:
        if self.run_id is not None:
            self._write_error(error_text(exception), self._steps_done)

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        if self._ctx is not None:
            return  # run_end will come
        failed, interrupted = isinstance(state.exception, Exception), state.exception is not None
        status: Status = "failed" if failed else "cancelled" if interrupted else "completed"
        self._saved_id = None
        self._end(status, {"status": status, **_ending(state)})

    def on_run_end(self, ctx: LogContext, run_result: RunResult | None, arm: ArmResult | None) -> None:
        results = [result for result in (run_result, arm) if result is not None]
        status: Status = results[0].status if results else "failed"
        summary: dict[str, Plain] = {"status": status}
        if run_result is not None and run_result.artifacts is not None:
            summary |= _ending(run_result.artifacts)
        for result in results:
            summary |= plain_values(result.metrics)
            if result.error:
                summary["error"] = error_text(result.error)
        if arm is not None:
            summary |= plain_values(_scores(arm))
        self._ctx = self._saved_id = None
        self._end(status, summary)

    def on_experiment_end(self, ctx: LogContext, result: ExperimentResult) -> None:
        """Log a table of all arms, as a run with the experiment's name; a plain run has nothing to compare."""
        self._end("cancelled")
        if ctx.extras.get("standalone"):
            return
        self._steps_done = 0
        self._begin(self._destination_settings.result_destination(ctx, result.name), resumed=True)
        arms = [{"arm": arm.name, "status": arm.status, **arm.metrics, **_scores(arm)} for arm in result.arms]
        if arms:
            self._write_table("arms", sample_table(arms, len(arms)), 0)
        facts = {"status": result.status, "best_arm": result.best_arm, "best_score": result.best_score,
                 "conclusion": result.conclusion, "hypothesis": result.hypothesis}  # fmt: skip
        self._end(result.status, plain_values({name: fact for name, fact in facts.items() if fact is not None}))

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self._saved_id = saved["run_id"]

    # -- to be defined by subclasses -----------------------------------------------------------------------

    @abstractmethod
    def _open(self, destination: Destination, run_id: str | None, first_step: int) -> str:
        """Open a run, or resume the one with this id; return its id. Steps from `first_step` on are repeated."""

    @abstractmethod
    def _write(self, values: dict[str, Plain], step: int) -> None:
        """Log one row of numbers and text."""

    @abstractmethod
    def _write_table(self, name: str, table: Table, step: int) -> None: ...

    @abstractmethod
    def _write_checkpoint(self, name: str, facts: Mapping[str, object], step: int) -> None:
        """Log a checkpoint's path and scores, not the checkpoint itself."""

    @abstractmethod
    def _write_error(self, text: str, step: int) -> None: ...

    @abstractmethod
    def _close(self, status: Status, summary: Mapping[str, object]) -> None: ...

    @abstractmethod
    def _earlier_id(self, destination: Destination) -> str | None:
        """The id of a run that an earlier try left at this destination."""

    def _logged_before(self, destination: Destination, run_id: str) -> dict[str, int]:
        """The last step at which each metric of a resumed run was logged."""
        return {}

    def _remember(self, destination: Destination, run_id: str, last: Mapping[str, int]) -> None:
        """Save what `_earlier_id` and `_logged_before` return, if the library does not."""

    def _rewind(self, first_step: int) -> None:
        """Steps from this one on will be repeated; those already logged are not logged twice."""

    # -- shared --------------------------------------------------------------------------------------------

    def _begin(self, destination: Destination, *, resumed: bool) -> None:
        """Open a run; a resumed one is opened with its id if an earlier process left it."""
        self._destination = destination
        make_private_folder(destination.folder)
        earlier = (self._saved_id or self._earlier_id(destination)) if resumed else None
        run_id = self._open(destination, earlier, _first_step(self._steps_done, resumed=resumed))
        if run_id == earlier:
            self._last = self._logged_before(destination, run_id)
        self.run_id = run_id
        self._remember(destination, run_id, self._last)

    def _end(self, status: Status, summary: Mapping[str, object] | None = None) -> None:
        is_open = self.run_id is not None
        self.run_id = None
        self._last, self._logged = {}, {}
        if is_open:
            self._close(status, summary or {"status": status})

    def _log(self, metrics: Mapping[str, object], step: int) -> None:
        if self.run_id is None:
            return
        new = {name: value for name, value in metrics.items() if self._is_new(name, step)}
        if new:
            self._write(plain_values(new), step)
            self._logged.update({name: (step, value) for name, value in new.items()})
            self._note_logged(new, step)

    def _is_new(self, name: str, step: int) -> bool:
        last = self._last.get(name)
        return last is None or step > last

    def _note_logged(self, names: Mapping[str, object], step: int) -> None:
        self._last.update(dict.fromkeys(names, step))
        assert self._destination is not None
        assert self.run_id is not None
        self._remember(self._destination, self.run_id, self._last)

    def _share_ids(self, ctx: LogContext) -> None:
        ctx.ids[f"{self.kind}:run_id"] = self.run_id
        ctx.ids.setdefault("run_id", self.run_id)


def _first_step(done: int, *, resumed: bool) -> int:
    """The first step that will be logged; a baseline eval comes before step 0."""
    return done if resumed else -1


def _ending(loop: LoopState | LoopArtifacts) -> dict[str, Plain]:
    """How far training came, and why it stopped if it did."""
    steps = loop.steps_run if isinstance(loop, LoopArtifacts) else loop.global_step
    return plain_values({"steps_run": steps} | ({"stop_reason": loop.stop_reason} if loop.stop_reason else {}))


def _scores(arm: ArmResult) -> dict[str, float]:
    """The scores of its benchmarks, as `benchmark.metric`."""
    return {f"{name}.{metric}": value for name, scores in arm.eval_metrics.items() for metric, value in scores.items()}
