"""Evals of a loop: scores of the weights after a step, computed at once or while training continues."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from ..data.state import LoopState


class Scoring(ABC):
    """One eval of the weights as they were when it began."""

    @abstractmethod
    def score(self) -> dict[str, float]: ...

    def report(self) -> None:  # noqa: B027 - optional
        """Called after `eval_end`: report the whole eval, with its predictions."""


class Scorer(Protocol):
    """Runs evaluators and reports their scores: a loop."""

    def score_now(self, evaluator: Evaluator, steps: int) -> None: ...
    def score_apart(self, evaluator: Evaluator, steps: int) -> None: ...


class ScheduledEval(ABC):
    """Something to do when `(step_idx + 1) % run_every == 0`, and with the final weights."""

    def __init__(self, name: str, run_every: int = 0, *, baseline: bool = False) -> None:
        self.name = name
        self.run_every = run_every
        self.baseline = baseline
        """Whether it also runs before the first step."""

    @abstractmethod
    def run(self, scorer: Scorer, steps: int) -> None:
        """Run it, after `steps` steps."""


class Evaluator(ScheduledEval):
    """A named score of the weights."""

    def __init__(self, name: str, run_every: int = 0, *, baseline: bool = False, apart: bool = False) -> None:
        super().__init__(name, run_every, baseline=baseline)
        self.apart = apart
        """Whether it scores in the background, while training continues."""

    @abstractmethod
    def begin(self, state: LoopState) -> Scoring:
        """Begin to score the present weights."""

    def run(self, scorer: Scorer, steps: int) -> None:
        if self.apart:
            scorer.score_apart(self, steps)
        else:
            scorer.score_now(self, steps)


class Participant(ScheduledEval):
    """Stands for an evaluator on the other ranks of several trainers: the weights may be spread over all of them."""

    @abstractmethod
    def take_part(self) -> None:
        """Do this rank's part of what rank 0's evaluator does when it begins."""

    def run(self, scorer: Scorer, steps: int) -> None:
        self.take_part()


class ScoreFunction(Evaluator):
    """A function that scores the present weights, for a loop of your own."""

    def __init__(
        self, name: str, function: Callable[[], dict[str, float]], run_every: int = 0, *, baseline: bool = False
    ) -> None:
        super().__init__(name, run_every, baseline=baseline)
        self._function = function

    def begin(self, state: LoopState) -> Scoring:
        return FunctionScoring(self._function)


class FunctionScoring(Scoring):
    """A function that scores the weights when it is called."""

    def __init__(self, function: Callable[[], dict[str, float]]) -> None:
        self._function = function

    def score(self) -> dict[str, float]:
        return self._function()


class BackgroundScoring:
    """An eval in a thread of its own, of the weights after so many steps."""

    def __init__(self, evaluator: Evaluator, steps: int, scoring: Scoring) -> None:
        self.evaluator = evaluator
        self.steps = steps
        self.scoring = scoring
        self._scores: dict[str, float] = {}
        self._error: BaseException | None = None
        # A daemon: a process that ends without waiting for it ends as in a crash, and the eval is repeated.
        self._thread = threading.Thread(target=self._run, name=f"eval {evaluator.name}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def scores(self) -> dict[str, float]:
        """Its scores, after waiting for them; raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._scores

    def give_up(self, seconds: float) -> None:
        """Wait at most `seconds` for its end."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._scores = self.scoring.score()
        except BaseException as error:  # raised by `scores`
            self._error = error
