"""Runs of an experiment as tasks of a Ray cluster; the experiment's folder must be one that all its machines share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..config import ConfigError, DetachedConfig, ExperimentConfig, RunConfig, arm_config
from ..data.results import ArmResult, Status
from ..runtime.ray.tasks import Task, TaskFailed, most_of, summarize, tasks_of
from .arm_run import ArmRun
from .processes import carried_out


class ArmTask:
    """One run in the cluster."""

    def __init__(self, work: ArmRun, start: Callable[..., Task], resources: dict[str, float]) -> None:
        self._work = work
        self._task = start(carried_out, work, **resources)
        self._interrupted = False

    def ended(self, seconds: float) -> bool:
        return self._task.ended(seconds)

    def interrupt(self) -> None:
        self._interrupted = True
        self._task.interrupt()

    def outcome(self) -> tuple[ArmResult, dict[str, Any]]:
        try:
            outcome: tuple[ArmResult, dict[str, Any]] = self._task.value()
        except TaskFailed as error:
            run = self._work.run
            status: Status = "cancelled" if self._interrupted else "failed"
            words = summarize(error) or ("interrupted before it began" if self._interrupted else "its task ended")
            return ArmResult(run.key, run.config, status, error=words, group_name=run.group), {}
        return outcome


@contextmanager
def arm_tasks(config: ExperimentConfig) -> Iterator[Callable[[ArmRun], ArmTask]]:
    with tasks_of(config.ray_address, f"proa-{config.name}") as start:
        cpus, gpus = most_of("CPU"), most_of("GPU")
        for arm in config.arms:
            resources_of(arm_config(config, arm), cpus, gpus)  # what cannot be had is told before anything runs
        yield lambda work: ArmTask(work, start, resources_of(work.run.config, cpus, gpus))


def resources_of(config: RunConfig, most_cpus: float, most_gpus: float) -> dict[str, float]:
    """What Ray sets aside for the task of a run, where one machine has so much. Ray hides GPUs from a task that did
    not ask for any. The actors of a run that is on Ray itself ask for their own; its task only waits for them."""
    if isinstance(config, DetachedConfig) and config.runtime == "ray":
        return {"num_cpus": 0}
    on_gpu = config.model.device.partition(":")[0] == "cuda"
    if on_gpu and most_gpus < 1:
        raise ConfigError(f"model.device is {config.model.device}, and no machine of the Ray cluster has a GPU")
    return {"num_cpus": min(config.threads, most_cpus), "num_gpus": int(on_gpu)}
