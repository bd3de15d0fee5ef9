"""Calls reward functions that cannot be sent to another process in a thread, with a deadline."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue

from ..numerics import preserved_settings
from .calling import CallFailed, TimedOut, call
from .function import RewardFunction
from .samples import Samples
from .score import Outcome


class ThreadCaller:
    """Makes each call in a new thread. A thread that hangs is abandoned: Python cannot end one."""

    def prepare(self) -> None:
        pass

    def call(self, function: RewardFunction, samples: Samples, seconds: float | None) -> list[Outcome]:
        answers: SimpleQueue[list[Outcome] | CallFailed] = SimpleQueue()

        def work() -> None:
            try:
                with preserved_settings(f"reward {function.name!r}"):
                    outcomes = call(function, samples)
                answers.put(outcomes)
            except CallFailed as failure:
                answers.put(failure)

        threading.Thread(target=work, name=f"reward {function.name}", daemon=True).start()
        try:
            answer = answers.get(timeout=seconds)
        except Empty:
            raise TimedOut(f"reward {function.name!r} timed out after {seconds:.3g} s") from None
        if isinstance(answer, CallFailed):
            raise answer
        return answer
