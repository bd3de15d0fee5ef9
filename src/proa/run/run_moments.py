"""Fires the moments around the training of one run, and fills in what they carry."""

from __future__ import annotations

import logging
import math
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from ..actors.interruption import Interruption
from ..config import RunConfig
from ..config.eval_section import BenchmarkSection
from ..data.loop import LoopArtifacts
from ..data.results import ArmResult, ExperimentResult, RunResult, Status, latest_evals
from ..data.state import LoopState, TrainState
from ..errors import ProaError
from ..lifecycle.failures import note_failure
from ..lifecycle.hooks import Callback
from ..lifecycle.policy import Priority
from ..record.evals import EvalRecord
from ..record.run_folder import BrokenRecordError, RunFolder
from ..resume.resuming import Resumption
from .evaluate import evaluate_folder
from .experiment_result import summarise
from .placing import Listeners

log = logging.getLogger("proa.run")


class RunMoments:
    """The moments around one run of an experiment: `run_start`, its benchmarks after training, `run_end`.

    `run_start` fires just before training, after all checks, and `run_end` on every way out.
    """

    def __init__(self, listeners: Listeners, arm: ArmResult, benchmarks: Sequence[BenchmarkSection] = ()) -> None:
        self.arm = arm
        self.result = RunResult(arm.name)
        self.begun = False
        """Whether the first moment has fired."""
        self._ctx = listeners.ctx
        self._manager = listeners.manager
        self._benchmarks = benchmarks
        self._interruption = Interruption()
        self._started = False  # whether `run_start` has fired
        listeners.add(_KeepArtifacts(self.result))

    def note_resumption(self, resumption: Resumption | None) -> None:
        """Tell loggers, for `run_start`, whether the run is resumed, and after how many steps."""
        row = None if resumption is None else resumption.row
        self._ctx.extras |= {
            "resumed_from": None if row is None else row.name,
            "steps_done": 0 if row is None else row.step,
        }

    @property
    def callback_errors(self) -> dict[str, int]:
        """How often callbacks in the driver failed."""
        return self._manager.errors

    @contextmanager
    def around_run(self, interruption: Interruption) -> Iterator[None]:
        """Training inside begins the run, and an exception fails it. Errors of checks before it began fire nothing."""
        self._interruption = interruption
        self._manager.enclosing_run = self
        try:
            yield
        except BaseException as error:
            if self.begun or not isinstance(error, ProaError):
                self.fail(error)
            raise
        finally:
            self._manager.enclosing_run = None

    @contextmanager
    def around_experiment(self, folder: RunFolder) -> Iterator[None]:
        """A context around the run and its header; here empty, as the experiment fires its own moments."""
        yield

    def begin(self) -> None:
        """Fire `run_start`, once: a restarted trainer is still in the same run."""
        if not self.begun:
            self._start()
            self._interruption.check()  # a stop may have been requested meanwhile

    def complete(self, folder: RunFolder, state: TrainState) -> None:
        """Score the final weights, then fire `run_end`; only then is the run marked completed."""
        self.result.metrics = _numbers(state.metrics)
        for section in self._benchmarks:
            self._interruption.check()
            self._score(section, folder, state)
        self._interruption.check()
        self._describe("completed")
        self._manager.fire("run_end", self._ctx, self.result, self.arm)

    def fail(self, error: BaseException) -> None:
        """Record the error that ends the run, and fire `run_end` if it has not fired. Errors of hooks are added as
        notes. A run that ended before it began fires both its moments."""
        has_ended = self.arm.status != "running"
        if self.arm.status in ("failed", "cancelled"):
            return
        if not self.begun:
            try:
                self._start()
            except Exception as late:
                note_failure(error, "also failed", late)
        self.result.error = f"{type(error).__name__}: {error}"
        self.result.extras["traceback"] = "".join(traceback.format_exception(error))
        self._describe("failed" if isinstance(error, Exception) else "cancelled")
        if self._started and not has_ended:
            try:
                self._manager.fire("run_end", self._ctx, self.result, self.arm)
            except Exception as late:
                note_failure(error, "also failed", late)
                log.warning("%s: on_run_end failed too: %s", self.arm.name, late)

    def _start(self) -> None:
        self.begun = True
        self._manager.start_run()
        self._start_run()

    def _start_run(self) -> None:
        self._started = True
        self._manager.fire("run_start", self._ctx)

    def _score(self, section: BenchmarkSection, folder: RunFolder, state: TrainState) -> None:
        began, config = perf_counter(), self.arm.run_config
        scored = evaluate_folder(
            config.folder / "model",
            section,
            config,
            version=state.policy_version if isinstance(state, LoopState) else 0,
            steps=state.global_step,
        )
        EvalRecord(folder.path).append(scored.result, scored.predictions)
        self.arm.eval_seconds += perf_counter() - began
        self._manager.fire("benchmark_eval", self._ctx, scored.result, scored.predictions, None)

    def _describe(self, status: Status) -> None:
        run, arm = self.result, self.arm
        arm.run_result = run
        arm.metrics = dict(run.metrics)
        arm.error = run.error
        run.run_id = arm.run_id = str(self._ctx.ids.get("run_id", self._ctx.run_key))
        if run.artifacts is not None:
            arm.train_seconds = run.artifacts.train_seconds
        if arm.status == "running":
            self._add_evals()
        run.status = arm.status = status

    def _add_evals(self) -> None:
        arm = self.arm
        try:
            arm.evals = EvalRecord(self._ctx.output_dir).read()
        except (BrokenRecordError, OSError) as error:
            log.warning("%s: its evals cannot be read: %s", arm.name, error)
        for name, result in latest_evals(arm.evals).items():
            arm.eval_metrics[name] = dict(result.metrics)
            arm.eval_breakdowns[name] = result.breakdowns
        arm.eval_seconds += sum(result.eval_seconds for result in arm.evals if result.step is not None)


class StandaloneMoments(RunMoments):
    """The moments around a plain run, which is an experiment of one: `experiment_start` and `experiment_end` too."""

    def __init__(self, listeners: Listeners, config: RunConfig) -> None:
        super().__init__(listeners, ArmResult(config.name, config, "running"))

    @contextmanager
    def around_experiment(self, folder: RunFolder) -> Iterator[None]:
        """Fire `experiment_end` if `experiment_start` has fired, after the header says how the run ended."""
        try:
            yield
        except BaseException as error:
            if self.begun:
                self.fail(error)  # if the header could not be written
                try:
                    self._end_experiment(folder)
                except Exception as late:
                    note_failure(error, "also failed", late)
            raise
        self._end_experiment(folder)

    def _start_run(self) -> None:
        self._manager.fire("experiment_start", self._ctx)
        super()._start_run()

    def _end_experiment(self, folder: RunFolder) -> None:
        if not self._manager.wants("experiment_end"):
            return
        arm, ctx, counted = self.arm, self._ctx, Counter(self._manager.errors)
        result = ExperimentResult(ctx.config.name, arm.status)
        result.experiment_id = str(ctx.ids.get("experiment_id", ctx.config.name))
        summarise(result, [arm] if self._started else [], {arm.name: arm.name}, ctx.config)
        try:
            self._manager.fire("experiment_end", ctx, result)
        finally:
            if late := Counter(self._manager.errors) - counted:  # the header was written before them
                folder.add_callback_errors(late)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, int | float) and not math.isnan(value)}


class _KeepArtifacts(Callback):
    """Copies the artifacts of training into the run's result."""

    priority = Priority.METRICS
    uses_asyncio = False

    def __init__(self, result: RunResult) -> None:
        self._result = result

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        self._result.artifacts = artifacts
        self._result.metrics = _numbers(state.metrics)
