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
from typing import Any, Protocol

from ..actors.interruption import SIGNALS
from ..data.results import ArmResult, Status
from .arm_run import ArmRun

log = logging.getLogger("proa.experiments")


class Elsewhere(Protocol):
    """A run that goes on in another process."""

    def ended(self, seconds: float) -> bool:
        """Whether it is over, waiting that long."""

    def interrupt(self) -> None:
        """As Ctrl-C does: the first time it saves and leaves, the second time it leaves at once."""

    def outcome(self) -> tuple[ArmResult, dict[str, Any]]:
        """Its result, and what its loggers call things."""


class ArmProcess:
    """On this machine. It gets signals from its starter alone, and leaves as on SIGTERM when that is gone."""

    def __init__(self, work: ArmRun) -> None:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self._work = work
        self._here, there = context.Pipe()
        self._process = context.Process(target=_child, args=(there, work, os.getpid()), name=work.run.key, daemon=False)
        resource_tracker.ensure_running()  # when the first process starts it, it lets SIGINT in again
        with _signals_held_back():  # in the process too, until it can answer one
            self._process.start()
        there.close()
        self._told: tuple[ArmResult, dict[str, Any]] | None = None
        self._interrupted = False

    def ended(self, seconds: float) -> bool:
        with contextlib.suppress(EOFError, OSError):
            if self._told is None and self._here.poll(seconds):
                self._told = self._here.recv()
        if self._told is None and self._process.is_alive():
            return False
        self._process.join(seconds)
        return not self._process.is_alive()

    def interrupt(self) -> None:
        self._interrupted = True
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGINT)

    def outcome(self) -> tuple[ArmResult, dict[str, Any]]:
        with contextlib.suppress(EOFError, OSError):
            if self._told is None and self._here.poll():  # said just before it ended
                self._told = self._here.recv()
        if self._told is not None:
            return self._told
        run, code = self._work.run, self._process.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        status: Status = "cancelled" if self._interrupted else "failed"
        return ArmResult(run.key, run.config, status, error=f"its process ended {how}", group_name=run.group), {}


def _child(connection: Connection, work: ArmRun, starter: int) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C in a terminal goes to a whole group; here it comes once, from the starter
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's `&` and nohup leave it ignored, and the starter asks by it: until the run listens, it would be lost.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_leave_with_starter, args=(starter,), name="proa starter", daemon=True).start()
    arm, ids = carried_out(work)
    with contextlib.suppress(BrokenPipeError), connection:  # nobody may be there any more
        try:
            connection.send((arm, ids))
        except (TypeError, AttributeError, pickle.PicklingError) as error:  # something of a hook's
            log.warning("what the hooks of %s left in ctx.ids stays in its process: %s", arm.name, error)
            connection.send((replace(arm, run_result=None), {}))


def carried_out(work: ArmRun) -> tuple[ArmResult, dict[str, Any]]:
    """A run's result, also where it was interrupted: whoever started it knows that."""
    run = work.run
    try:
        _let_signals_in()
        arm = work.carry_out()
    except KeyboardInterrupt:
        arm = work.arm or ArmResult(run.key, run.config, "cancelled", error="interrupted", group_name=run.group)
    except Exception as error:  # before the run could tell of itself
        log.exception("%s failed", run.key)
        told = f"{type(error).__name__}: {error}"
        arm = ArmResult(run.key, run.config, "failed", error=told, group_name=run.group)
    return arm, work.ids


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """A process that is started inside finds the signals that come to it held back: while it imports what it needs, one
    would end it with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _let_signals_in() -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _leave_with_starter(starter: int) -> None:
    while os.getppid() == starter:
        threading.Event().wait(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
