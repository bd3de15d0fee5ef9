"""Rewards computed in worker processes, with a deadline for every call."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from queue import LifoQueue
from types import TracebackType
from typing import Any

from ..data.messages import Messages
from ..processes.portable import NotPortableToChild, pickled
from .function import GivenReward, RewardError, RewardFunction, check_columns, load_rewards
from .in_thread import ThreadCaller
from .judging import judge
from .process import CLOSED, WorkerProcess
from .samples import RunLength, Samples
from .score import Score, combine

_log = logging.getLogger(__name__)


class RewardWorkers:
    """Scores samples in `workers` processes; several threads may call it at once, each batch goes to one process.

    `timeout` is the deadline of one call of one function. A process that misses it or dies is replaced, the batch is
    judged again sample by sample within a second deadline, and a sample that hangs or crashes again is marked. An
    object with state has a copy in every process, which is lost when the process is replaced.

        with RewardWorkers(["my_rewards:correct", brevity], weights=[1.0, 0.1], timeout=10) as rewards:
            scores = rewards.score(prompts, completions, {"answer": answers})
    """

    def __init__(
        self,
        rewards: GivenReward | RewardFunction | Sequence[GivenReward | RewardFunction],
        *,
        weights: Sequence[float] | None = None,
        timeout: float = 30.0,
        workers: int = 1,
        length: RunLength | None = None,
    ) -> None:
        if not (timeout > 0 and math.isfinite(timeout)):
            raise RewardError(f"timeout must be a number of seconds above 0, not {timeout}")
        if workers < 1:
            raise RewardError(f"workers must be at least 1, not {workers}")
        self.functions = load_rewards(rewards, weights)
        self._length = length
        self._timeout = timeout
        portable = {function.name: form for function in self.functions if (form := _portable_form(function))}
        self._unportable = {function.name for function in self.functions} - portable.keys()
        self._thread_caller = ThreadCaller()
        self._workers = [WorkerProcess(portable) for _ in range(workers)]
        self._idle: LifoQueue[WorkerProcess] = LifoQueue()  # the last one used is the most likely to be running
        for worker in self._workers:
            self._idle.put(worker)
        self._end = weakref.finalize(self, _end_workers, self._workers)

    def check(self, columns: Iterable[str]) -> None:
        """Raise `RewardError` if a function needs a column that is not among these."""
        check_columns(self.functions, columns, has_trainer=self._length is not None)

    def score(
        self,
        prompts: Sequence[str | Messages],
        completions: Sequence[str | Messages],
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[Score]:
        """One score per sample, in order. Waits for a free worker."""
        samples = Samples.collect(prompts, completions, columns, self._length)
        if not len(samples):
            return []
        worker = self._idle.get()
        try:
            if not self._end.alive:
                raise RewardError(CLOSED)
            outcomes = [
                judge(
                    function,
                    samples,
                    self._thread_caller if function.name in self._unportable else worker,
                    self._timeout,
                )
                for function in self.functions
            ]
        finally:
            self._idle.put(worker)
        return combine(self.functions, outcomes)

    def close(self) -> None:
        """Kill the processes; a running `score` raises `RewardError`."""
        self._end()

    def __enter__(self) -> RewardWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def _portable_form(function: RewardFunction) -> str | bytes | None:
    """A function's path or pickle for another process; None, with a warning, if it has neither."""
    if function.path is not None and not function.path.startswith("__main__"):
        return function.path
    try:
        return pickled(function.function)
    except NotPortableToChild as reason:
        _log.warning(
            "reward %r runs in a thread of this process, where a hang cannot be ended and signal.alarm does not work, "
            "because it cannot be sent to a worker process (%s): define it at the top level of a module to change that",
            function.name,
            reason,
        )
        return None


def _end_workers(workers: Iterable[WorkerProcess]) -> None:
    for worker in workers:
        worker.end()
