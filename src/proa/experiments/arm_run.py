"""One run of an experiment, in any process: its hooks, its training, its benchmarks, its result."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias

from ..actors.interruption import Interruption
from ..callbacks import build_callback
from ..config import ExperimentConfig, RunConfig
from ..data.loop import LoopArtifacts
from ..data.results import ArmResult, LogContext, RunResult, Status
from ..data.state import LoopState, TrainState
from ..lifecycle.failures import note_failure
from ..lifecycle.hooks import BaseCallback, Callback
from ..lifecycle.manager import CallbackManager
from ..lifecycle.policy import Priority
from ..lifecycle.roles import CallbackFactory
from ..record.evals import EvalRecord
from ..record.run_folder import RunFolder
from ..resume.resuming import AUTO
from ..run.evaluate import evaluate_folder
from ..run.given import Given
from ..run.placing import Listeners, place_callbacks
from ..run.start import build_run, carry_out
from .plan import PlannedRun
from .saved_result import save_arm

log = logging.getLogger("proa.experiments")

GivenCallbacks: TypeAlias = Sequence[BaseCallback | CallbackFactory | CallbackManager] | CallbackManager
"""What the user passed as `callbacks=`."""
LEAVING_SECONDS = 10.0
"""How long the run of a killed experiment may take to exit after its grace period."""


@dataclass
class ArmRun:
    """Carries out one planned run. `callbacks` are the user's; factories make new ones for this run."""

    experiment: ExperimentConfig
    run: PlannedRun
    callbacks: GivenCallbacks = ()
    ids: dict[str, Any] = field(default_factory=dict)
    arm: ArmResult | None = field(default=None, init=False)
    """The result so far, also while it is running."""

    def carry_out(self, interruption: Interruption | None = None) -> ArmResult:
        """Train, benchmark, and fire the hooks. A failure is in the result; an interrupt is raised after the hooks.

        `interruption` is the experiment's, where its runs are carried out one after the other.
        """
        run = self.run
        ctx = LogContext(
            run.config.folder, self.experiment, run.key, run.config, run.group, self.ids
        )  # fmt: skip
        self.arm = arm = ArmResult(
            run.key,
            run.config,
            "running",
            group_name=run.group,
            group_id=None if run.group is None else str(self.ids.get(f"group:{run.group}", run.group)),
        )
        interruption = interruption or Interruption(run.config.checkpoint.grace)
        with interruption.listening(), ExitStack() as stack:
            try:
                listeners = stack.enter_context(self._listeners(ctx))
            except Exception as error:  # there are no callbacks to notify yet
                arm.status, arm.error = "failed", f"{type(error).__name__}: {error}"
                return arm
            _HookedRun(self.experiment, run, arm, ctx, listeners, interruption).carry_out()
        return arm

    @contextmanager
    def _listeners(self, ctx: LogContext) -> Iterator[Listeners]:
        with place_callbacks(self.run.config, self.callbacks, ctx) as listeners:
            for section in self.experiment.callbacks:
                listeners.place(build_callback(section.model_dump()))
            yield listeners


@dataclass
class _HookedRun:
    """One run between `run_start` and `run_end`, which fires however the run ends."""

    experiment: ExperimentConfig
    run: PlannedRun
    arm: ArmResult
    ctx: LogContext
    listeners: Listeners
    interruption: Interruption
    result: RunResult = field(init=False)

    def carry_out(self) -> None:
        self.result = RunResult(self.run.key)
        self.listeners.add(_KeepArtifacts(self.result))
        try:
            self.listeners.manager.fire("run_start", self.ctx)
            self._train()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _train(self) -> None:
        config = self.run.config
        carry_out(
            config,
            lambda: build_run(config, Given(), self.listeners),
            resume=AUTO,
            after_training=self._after_training,
            interruption=self.interruption,
            patience=config.checkpoint.grace + LEAVING_SECONDS,
        )

    def _after_training(self, folder: RunFolder, state: TrainState) -> None:
        """Benchmark the final weights, then fire `run_end`; only then is the run marked completed."""
        self.result.metrics = _numbers(state.metrics)
        for section in self.experiment.metadata.benchmark:
            self.interruption.leave_if_asked()
            began = perf_counter()
            scored = evaluate_folder(
                self.run.config.folder / "model",
                section,
                self.run.config,
                version=state.policy_version if isinstance(state, LoopState) else 0,
                steps=state.global_step,
            )
            EvalRecord(folder.path).append(scored.result, scored.predictions)
            self.arm.eval_seconds += perf_counter() - began
            self.listeners.manager.fire("benchmark_eval", self.ctx, scored.result, scored.predictions, None)
        self.interruption.leave_if_asked()
        self._describe("completed")
        self._end()
        self._save()  # after the hooks: if it is cut off before this, they fire again

    def _fail(self, error: BaseException) -> None:
        """Record the first error; that of a hook which fails after it is added as a note."""
        has_ended = self.arm.status != "running"  # a hook of `run_end` failed
        self.result.error = f"{type(error).__name__}: {error}"
        self.result.extras["traceback"] = "".join(traceback.format_exception(error))
        self._describe("failed" if isinstance(error, Exception) else "cancelled")
        try:
            if not has_ended:
                self._end()
        except Exception as late:
            note_failure(error, "also failed", late)
            log.warning("%s: on_run_end failed too: %s", self.arm.name, late)
        self._save()

    def _describe(self, status: Status) -> None:
        run, arm = self.result, self.arm
        arm.run_result = run
        arm.metrics = dict(run.metrics)
        arm.error = run.error
        run.run_id = arm.run_id = str(self.ctx.ids.get("run_id", self.run.key))
        if run.artifacts is not None:
            arm.train_seconds = run.artifacts.train_seconds
        if arm.status == "running":
            _add_evals(arm, self.run.config)
        run.status = arm.status = status

    def _end(self) -> None:
        self.listeners.manager.fire("run_end", self.ctx, self.result, self.arm)

    def _save(self) -> None:
        if self.run.config.folder.exists():
            save_arm(self.arm, self.run.config.folder, self.experiment.metadata.benchmark)


def _add_evals(arm: ArmResult, config: RunConfig) -> None:
    results = EvalRecord(config.folder).read() if config.folder.exists() else []
    arm.evals = results
    for result in results:  # the last of each name wins
        arm.eval_metrics[result.name] = dict(result.metrics)
        arm.eval_breakdowns[result.name] = result.breakdowns
    arm.eval_seconds += sum(result.eval_seconds for result in results if result.step is not None)


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
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


def unreached(run: PlannedRun, failed: ArmResult) -> ArmResult:
    """The result of a stage that was not run because an earlier one failed."""
    return ArmResult(
        run.key, run.config, "cancelled", error=f"not run: {failed.name} {failed.status}", group_name=run.group
    )  # fmt: skip
