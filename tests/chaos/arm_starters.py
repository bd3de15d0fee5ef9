"""Processes that start a run of an experiment in a process of its own; the nursery calls them.

The run is held before it lets signals in, where its imports would be, until there is a file `released`. It is forked
instead of spawned: what it has to import is there already, and the signals that are held back are so in a fork too.
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
    process = _held_run()
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
    _held_run()
    os.kill(os.getpid(), signal.SIGKILL)


def _held_run():
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda kind: fork
    let_signals_in = processes._let_signals_in

    def held():
        Path("held").touch()
        while not Path("released").exists():
            time.sleep(0.01)
        let_signals_in()

    processes._let_signals_in = held
    config = load_experiment_config(None, name="e", output_dir=".", run={**RUN, "total_steps": 1_000_000})
    process = processes.ArmProcess(ArmRun(config, plan(config)[0][0]))
    while not Path("held").exists():
        time.sleep(0.01)
    return process
