"""Runs of an experiment as tasks of a Ray cluster, whose machines must share the experiment's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..config import ConfigError, DetachedConfig, ExperimentConfig, RunConfig, arm_config
from ..config.sections import AUTO
from ..data.results import ArmResult, Status
from ..runtime.ray.tasks import Task, TaskFailed, most_of, summarize, tasks_of
from .arm_run import ArmRun
from .processes import Outcome, run_arm


class ArmTask:
    """One run in the cluster."""

    def __init__(self, work: ArmRun, start: Callable[..., Task], resources: dict[str, float]) -> None:
        self._work = work
        self._task = start(run_arm, work, **resources)
        self._interrupted = False

    def ended(self, seconds: float) -> bool:
        return self._task.ended(seconds)

    def interrupt(self) -> None:
        self._interrupted = True
        self._task.interrupt()

    def outcome(self) -> Outcome:
        try:
            outcome: Outcome = self._task.value()
        except TaskFailed as error:
            run = self._work.run
            status: Status = "cancelled" if self._interrupted else "failed"
            reason = summarize(error) or ("interrupted before it started" if self._interrupted else "its task ended")
            return Outcome(ArmResult(run.key, run.config, status, error=reason, group_name=run.group), {})
        return outcome


@contextmanager
def arm_tasks(config: ExperimentConfig) -> Iterator[Callable[[ArmRun], ArmTask]]:
    """Starts the runs of an experiment in the cluster, which is checked for the resources that they need."""
    with tasks_of(config.ray_address, f"proa-{config.name}") as start:
        cpus, gpus = most_of("CPU"), most_of("GPU")
        for arm in config.arms:
            task_resources(arm_config(config, arm), cpus, gpus)  # raises before anything runs
        yield lambda work: ArmTask(work, start, task_resources(work.run.config, cpus, gpus))


def task_resources(config: RunConfig, most_cpus: float, most_gpus: float) -> dict[str, float]:
    """What Ray reserves for the task of a run; `most_cpus` and `most_gpus` are the most that one machine has.

    Ray hides GPUs from a task that did not ask for any. The actors of a run on Ray reserve their own resources; its
    task only waits for them.
    """
    if isinstance(config, DetachedConfig) and config.runtime == "ray":
        return {"num_cpus": 0}
    device = config.model.device
    on_gpu = most_gpus >= 1 if device == AUTO else device.partition(":")[0] == "cuda"
    if on_gpu and most_gpus < 1:
        raise ConfigError(f"model.device is {config.model.device}, and no machine of the Ray cluster has a GPU")
    return {"num_cpus": min(config.threads, most_cpus), "num_gpus": int(on_gpu)}
