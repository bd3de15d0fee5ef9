"""Processes that start a run of an experiment in a process of its own; the nursery calls them.

The run is held where its imports would be, before it can answer a signal, until there is a file `released`. It is
forked instead of spawned: what it needs is imported already, and signals are held back in a fork as in a spawned one.
"""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

from tests.experiments.small_experiment import RUN

from proa.config import load_experiment_config
from proa.experiments import processes
from proa.experiments.arm_run import ArmRun
from proa.experiments.plan import plan


def interrupt_early(handler, times):
    """Interrupt a run that cannot answer yet; `handler` is what the process that starts it has for SIGINT."""
    signal.signal(signal.SIGINT, {"default": signal.default_int_handler, "ignored": signal.SIG_IGN}[handler])
    process = _held_run(total_steps=2)
    for _ in range(times):
        process.interrupt()
    Path("released").touch()
    while not process.ended(0.1):
        pass
    arm, _ = process.outcome()
    Path("outcome.json").write_text(json.dumps([arm.status, arm.error]))
    return 0


def die_early():
    """Be killed while the run that was started cannot answer yet."""
    _held_run(total_steps=1_000_000)
    os.kill(os.getpid(), signal.SIGKILL)


def _held_run(total_steps):
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda kind: fork
    child = processes._child

    def held(*arguments):
        Path("held").touch()
        while not Path("released").exists():
            time.sleep(0.01)
        child(*arguments)

    processes._child = held
    config = load_experiment_config(None, name="e", output_dir=".", run={**RUN, "total_steps": total_steps})
    process = processes.ArmProcess(ArmRun(config, plan(config)[0][0]))
    while not Path("held").exists():
        time.sleep(0.01)
    return process
