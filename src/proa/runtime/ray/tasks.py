"""Tasks of a Ray cluster, one process each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from .calls import summarize
from .cluster import cluster

__all__ = ["Task", "TaskFailed", "most_of", "summarize", "tasks_of"]


class Task:
    """A function call in the cluster. `resources` are reserved for it by Ray, e.g. `num_gpus`."""

    def __init__(self, function: Callable[[Any], Any], work: Any, **resources: Any) -> None:
        remote: Any = ray.remote(max_retries=0, **resources)(function)
        self._reference = remote.remote(work)

    def ended(self, seconds: float) -> bool:
        ready, _ = ray.wait([self._reference], timeout=seconds)
        return bool(ready)

    def interrupt(self) -> None:
        """Raise `KeyboardInterrupt` in the task's main thread."""
        ray.cancel(self._reference, force=False)

    def value(self) -> Any:
        """Its result; raises Ray's error if its process is gone."""
        return ray.get(self._reference)


def most_of(resource: str) -> float:
    """The most `CPU` or `GPU` that one machine of the cluster has; a task that requests more waits forever."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return max((float(node["Resources"].get(resource, 0.0)) for node in nodes if node["Alive"]), default=0.0)


@contextmanager
def tasks_of(address: str | None, name: str) -> Iterator[Callable[..., Task]]:
    """A context in which tasks can be started, on the cluster at the address or one that is started here."""
    with cluster(address, name):
        yield Task


TaskFailed = ray.exceptions.RayError
