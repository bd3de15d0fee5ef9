"""Several runs at once: a thread for each chain, and a process or a task of a cluster for each run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

from ..actors.interruption import Interruption
from ..config import ExperimentConfig
from ..data.results import ArmResult, LogContext
from .arm_run import ArmRun, GivenCallbacks, unreached
from .plan import Chain, PlannedRun
from .processes import ArmProcess, Outcome, RemoteRun

Start = Callable[[ArmRun], RemoteRun]
POLL_SECONDS = 0.1


class Progress(Protocol):
    """What is left of an experiment, and where its results go."""

    config: ExperimentConfig

    @property
    def given(self) -> GivenCallbacks:
        """The user's callbacks."""

    @property
    def left(self) -> list[Chain]: ...
    def is_done(self, run: PlannedRun) -> bool: ...
    def announce_group(self, run: PlannedRun, ctx: LogContext) -> None: ...
    def note(self, arm: ArmResult) -> None: ...


def run_concurrently(experiment: Progress, ctx: LogContext, interruption: Interruption) -> None:
    """Carry out the remaining chains, `max_concurrent_arms` at a time. An interrupt is passed on to the runs, which
    save and exit."""
    interruption.polled = True
    starting: AbstractContextManager[Start] = nullcontext(ArmProcess)
    if experiment.config.arms_on == "ray":
        from .ray_tasks import arm_tasks  # ray is optional

        starting = arm_tasks(experiment.config)
    with starting as start:
        chains = _Chains(experiment, ctx, start, interruption)
        with ThreadPoolExecutor(experiment.config.max_concurrent_arms, "proa arm") as pool:
            futures = [pool.submit(chains.carry_out, chain) for chain in experiment.left]
            _wait(futures, interruption)
    interruption.check()


def _wait(futures: list[Future[None]], interruption: Interruption) -> None:
    """Wait for all; the first error, such as that of an experiment hook, stops the others like an interrupt."""
    pending, failed = set(futures), None
    while pending:
        done, pending = wait(pending, POLL_SECONDS, FIRST_EXCEPTION)
        for error in (future.exception() for future in done):
            if error is not None and failed is None:
                failed = error
                interruption.ask(f"{type(error).__name__}: {error}")
    if failed is not None:
        raise failed


class _Chains:
    """Carries out chains, in several threads."""

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
            arm = self._carry_out_run(run)
            failed = arm if arm.status != "completed" else None

    def _carry_out_run(self, run: PlannedRun) -> ArmResult:
        with self._guard:  # hooks of the experiment never run at the same time
            self._experiment.announce_group(run, self._ctx)
            ids = {key: value for key, value in self._ctx.ids.items() if key != "run_id"}
        try:
            remote = self._start(ArmRun(self._experiment.config, run, self._experiment.given, ids))
        except OSError as error:  # too many processes, or no memory for another
            message = f"its process could not be started: {error}"
            arm = ArmResult(run.key, run.config, "failed", error=message, group_name=run.group)
            with self._guard:
                self._experiment.note(arm)
            return arm
        arm, new_ids = self._wait_for_outcome(remote)
        with self._guard:
            self._ctx.ids.update({key: value for key, value in new_ids.items() if key != "run_id"})
            self._experiment.note(replace(arm, run_config=run.config))
        return arm

    def _wait_for_outcome(self, remote: RemoteRun) -> Outcome:
        """Wait for the end of a run, passing interrupts on."""
        sent = 0
        while not remote.ended(POLL_SECONDS):
            wanted = 2 if self._interruption.at_once else 1 if self._interruption.reason else 0
            while sent < wanted:
                sent += 1
                remote.interrupt()
        return remote.outcome()
