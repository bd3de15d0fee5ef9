"""One run of an experiment, in any process: its callbacks, its training, its benchmarks, its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..actors.interruption import Interruption
from ..callbacks import build_callback
from ..config import ExperimentConfig
from ..data.results import ArmResult, LogContext
from ..lifecycle.hooks import BaseCallback
from ..lifecycle.listeners import Function
from ..lifecycle.manager import CallbackManager
from ..lifecycle.roles import CallbackFactory
from ..resume.resuming import AUTO
from ..run.automatic import resolve_automatic
from ..run.given import Given
from ..run.placing import Listeners, place_callbacks
from ..run.run_moments import RunMoments
from ..run.start import build_run, carry_out
from .plan import PlannedRun
from .saved_result import save_arm

GivenCallbacks: TypeAlias = Sequence[BaseCallback | CallbackFactory | Function | CallbackManager] | CallbackManager
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
            run.config.folder, self.experiment, run.key, run.config, run.group, self.ids, {"standalone": False}
        )
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
            try:
                self._train(listeners, interruption)
            finally:
                if run.config.folder.exists():
                    save_arm(arm, run.config.folder, self.experiment.metadata.benchmark)
        return arm

    def _train(self, listeners: Listeners, interruption: Interruption) -> None:
        assert self.arm is not None, "it is made before"
        moments = RunMoments(listeners, self.arm, self.experiment.metadata.benchmark)
        try:
            config = resolve_automatic(self.run.config, Given(), resumed=True)
            carry_out(
                config,
                lambda: build_run(config, Given(), listeners),
                moments,
                resume=AUTO,
                interruption=interruption,
                patience=config.checkpoint.grace + LEAVING_SECONDS,
            )
        except BaseException as error:
            moments.fail(error)  # also one that was refused: it was planned
            if not isinstance(error, Exception):
                raise

    @contextmanager
    def _listeners(self, ctx: LogContext) -> Iterator[Listeners]:
        with place_callbacks(self.run.config, self.callbacks, ctx) as listeners:
            for section in self.experiment.callbacks:
                listeners.place(build_callback(section.model_dump()))
            yield listeners


def unreached(run: PlannedRun, failed: ArmResult) -> ArmResult:
    """The result of a stage that was not run because an earlier one failed."""
    return ArmResult(
        run.key, run.config, "cancelled", error=f"not run: {failed.name} {failed.status}", group_name=run.group
    )  # fmt: skip
