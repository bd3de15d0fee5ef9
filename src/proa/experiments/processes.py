"""A run of an experiment in a process of its own, which ends with the one that started it."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from ..actors.interruption import SIGNALS
from ..data.results import ArmResult, Status
from .arm_run import ArmRun

log = logging.getLogger("proa.experiments")


class Outcome(NamedTuple):
    """The result of a run, and the ids that its loggers added to `ctx.ids`."""

    arm: ArmResult
    ids: dict[str, Any]


class RemoteRun(Protocol):
    """A run in another process."""

    def ended(self, seconds: float) -> bool:
        """Whether it has ended; waits at most this long."""

    def interrupt(self) -> None:
        """Like Ctrl-C: after the first it saves and exits, after the second it exits at once."""

    def outcome(self) -> Outcome: ...


class ArmProcess:
    """A run in a process of this machine. Only its starter sends it signals; if the starter ends, it exits as on
    SIGTERM."""

    def __init__(self, work: ArmRun) -> None:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self._work = work
        self._here, there = context.Pipe()
        self._process = context.Process(target=_child, args=(there, work, os.getpid()), name=work.run.key, daemon=False)
        resource_tracker.ensure_running()  # started with the first process, it would unblock SIGINT
        with _signals_blocked():  # also in the new process, until it can handle them
            self._process.start()
        there.close()
        self._outcome: Outcome | None = None
        self._interrupted = False

    def ended(self, seconds: float) -> bool:
        with contextlib.suppress(EOFError, OSError):
            if self._outcome is None and self._here.poll(seconds):
                self._outcome = self._here.recv()
        if self._outcome is None and self._process.is_alive():
            return False
        self._process.join(seconds)
        return not self._process.is_alive()

    def interrupt(self) -> None:
        self._interrupted = True
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGINT)

    def outcome(self) -> Outcome:
        with contextlib.suppress(EOFError, OSError):
            if self._outcome is None and self._here.poll():  # sent just before it ended
                self._outcome = self._here.recv()
        if self._outcome is not None:
            return self._outcome
        run, code = self._work.run, self._process.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        status: Status = "cancelled" if self._interrupted else "failed"
        arm = ArmResult(run.key, run.config, status, error=f"its process ended {how}", group_name=run.group)
        return Outcome(arm, {})


def _child(connection: Connection, work: ArmRun, starter: int) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C in a terminal goes to a whole group; here only the starter sends it
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's `&` and nohup ignore SIGINT, by which the starter asks: it would be lost until the run listens.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_watch_starter, args=(starter,), name="proa starter", daemon=True).start()
    arm, ids = run_arm(work)
    with contextlib.suppress(BrokenPipeError), connection:  # the starter may be gone
        try:
            connection.send(Outcome(arm, ids))
        except (TypeError, AttributeError, pickle.PicklingError) as error:  # an object that a hook left
            log.warning("what the hooks of %s left in ctx.ids stays in its process: %s", arm.name, error)
            connection.send(Outcome(replace(arm, run_result=None), {}))


def run_arm(work: ArmRun) -> Outcome:
    """Carry out a run in its own process. An interrupt is not raised: the starter sent it."""
    run = work.run
    try:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        arm = work.carry_out()
    except KeyboardInterrupt:
        arm = work.arm or ArmResult(run.key, run.config, "cancelled", error="interrupted", group_name=run.group)
    except Exception as error:  # raised outside the run, which records its own
        log.exception("%s failed", run.key)
        message = f"{type(error).__name__}: {error}"
        arm = ArmResult(run.key, run.config, "failed", error=message, group_name=run.group)
    return Outcome(arm, work.ids)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """A process started inside begins with signals blocked: during its imports one would end it with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch_starter(starter: int) -> None:
    """Exit as on SIGTERM when the starter is gone."""
    while os.getppid() == starter:
        threading.Event().wait(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
