"""Several runs at once: chains in threads here, each run in a process of its own, or in a task of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol

from ..actors.interruption import Interruption
from ..config import ExperimentConfig
from ..data.results import ArmResult, LogContext
from .arm_run import ArmRun, unreached
from .plan import Chain, PlannedRun
from .processes import ArmProcess, Elsewhere

Start = Callable[[ArmRun], Elsewhere]
LOOK_SECONDS = 0.1


class Progress(Protocol):
    """What is left of an experiment, and where its results go."""

    config: ExperimentConfig

    @property
    def given(self) -> Any:
        """The callbacks that the user gave."""

    @property
    def left(self) -> list[Chain]: ...
    def is_done(self, run: PlannedRun) -> bool: ...
    def announce_group(self, run: PlannedRun, ctx: LogContext) -> None: ...
    def note(self, arm: ArmResult) -> None: ...


def run_concurrently(experiment: Progress, ctx: LogContext, interruption: Interruption) -> None:
    """Carry out what is left, so many chains at a time. An interrupt is passed on, and waited for."""
    interruption.polled = True
    with _starting(experiment) as start:
        chains = _Chains(experiment, ctx, start, interruption)
        with ThreadPoolExecutor(experiment.config.max_concurrent_arms, "proa arm") as pool:
            futures = [pool.submit(chains.carry_out, chain) for chain in experiment.left]
            _wait_for(futures, interruption)
    interruption.leave_if_asked()


def _wait_for(futures: list[Future[None]], interruption: Interruption) -> None:
    """The first that fails, a hook of the experiment's say, ends the others as an interrupt does."""
    pending, failed = set(futures), None
    while pending:
        done, pending = wait(pending, LOOK_SECONDS, FIRST_EXCEPTION)
        for error in (future.exception() for future in done):
            if error is not None and failed is None:
                failed = error
                interruption.ask(f"{type(error).__name__}: {error}")
    if failed is not None:
        raise failed


class _Chains:
    """What the threads of an experiment share."""

    def __init__(
        self,
        experiment: Progress,
        ctx: LogContext,
        start: Start,
        interruption: Interruption,
    ) -> None:
        self._experiment = experiment
        self._ctx = ctx
        self._start = start
        self._interruption = interruption
        self._guard = threading.Lock()

    def carry_out(self, chain: Chain) -> None:
        failed: ArmResult | None = None
        for run in chain:
            if self._experiment.is_done(run) or self._interruption.reason:
                continue
            if failed is not None:
                with self._guard:
                    self._experiment.note(unreached(run, failed))
                continue
            arm = self._one(run)
            failed = arm if arm.status != "completed" else None

    def _one(self, run: PlannedRun) -> ArmResult:
        with self._guard:  # hooks of the experiment are called one at a time
            self._experiment.announce_group(run, self._ctx)
            ids = {key: value for key, value in self._ctx.ids.items() if key != "run_id"}
        try:
            elsewhere = self._start(ArmRun(self._experiment.config, run, self._experiment.given, ids))
        except OSError as error:  # no room for another process
            arm = ArmResult(run.key, run.config, "failed", error=f"no process for it: {error}", group_name=run.group)
            with self._guard:
                self._experiment.note(arm)
            return arm
        arm, new_ids = self._outcome(elsewhere)
        with self._guard:
            self._ctx.ids.update({key: value for key, value in new_ids.items() if key != "run_id"})
            self._experiment.note(replace(arm, run_config=run.config))
        return arm

    def _outcome(self, elsewhere: Elsewhere) -> tuple[ArmResult, dict[str, Any]]:
        """Wait for it, passing interrupts on."""
        asked = 0
        while not elsewhere.ended(LOOK_SECONDS):
            wanted = 2 if self._interruption.at_once else 1 if self._interruption.reason else 0
            while asked < wanted:
                asked += 1
                elsewhere.interrupt()
        return elsewhere.outcome()


def _starting(experiment: Progress) -> Any:
    """Where runs are started: a context manager that gives a `Start`."""
    if experiment.config.arms_on == "ray":
        from .ray_tasks import arm_tasks  # not everyone has ray

        return arm_tasks(experiment.config)
    return nullcontext(ArmProcess)
