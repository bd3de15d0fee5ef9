"""The result of comparing two arms: the difference, its interval, the verdict, and a sentence that claims no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import SettingError
from ..spelling import did_you_mean
from .formatting import count, interval, number

Mode = Literal["max", "min"]
Verdict = Literal["better", "worse", "no difference seen", "cannot tell"]
Chance = Literal["training and tasks", "training", "tasks", "nothing"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arm a against arm b over `pairs` of scores of `seeds` and `tasks` (None where there are no scores of tasks).

    The pairs are all seeds × all tasks, or with `own_tasks` other tasks in each seed. `a` and `b` are their means over
    the pairs, `difference` is a − b whatever the mode, `low` to `high` its interval (None where none can be given).
    `missing` scores had no partner or left a hole. `chance` says what was drawn more than once, so what the interval
    speaks about. `share` is the share of bootstrap resamples in which a is better, ties counted half: a description,
    the verdict does not rest on it.
    """

    a: float | None
    b: float | None
    difference: float | None
    low: float | None
    high: float | None
    level: float
    mode: Mode
    seeds: int
    tasks: int | None
    own_tasks: bool
    pairs: int
    missing: int
    chance: Chance
    method: str
    share: float | None
    verdict: Verdict
    words: str = ""

    def describe(self, a: str = "a", b: str = "b") -> str:
        """One sentence: the finding, what it rests on, and what it cannot say."""
        if self.difference is None:
            return f"Cannot tell {a} from {b}: no seed and task is scored in both{self._omissions()}."
        if self.chance == "nothing":
            return (
                f"Cannot tell: {a} has {number(self.a)} and {b} has {number(self.b)}, one score each, so "
                f"nothing can be said about chance{self._omissions()}."
            )
        return f"{self._finding(a, b)} ({self._basis(a, b)}){self._limits()}{self._omissions()}."

    def _finding(self, a: str, b: str) -> str:
        difference = number(self.difference)
        if self.verdict == "no difference seen":
            return (
                f"No difference seen between {a} and {b}, which is not to say that they are equal: "
                f"they differ by {difference}"
            )
        if self.verdict == "cannot tell":
            few = "seeds" if self.seeds > 1 else "tasks"
            return (
                f"Cannot tell {a} from {b}: they differ by {difference} in every pair, and so few {few} may agree by "
                f"chance"
            )
        return f"{a} is {self.verdict} than {b} by {number(abs(self.difference or 0.0))}"

    def _basis(self, a: str, b: str) -> str:
        paired = count(self.seeds, "seed")
        if self.tasks is not None:
            tasks = count(self.tasks, "task")
            paired += f", {tasks}, other ones in each" if self.own_tasks else f" × {tasks}"
        if self.low is None:
            return f"{a} − {b}: all differences equal, so no interval; {paired}, paired"
        return f"{a} − {b}: {interval(self.low, self.high, self.level)}; {paired}, paired"

    def _limits(self) -> str:
        limits = ""
        if self.chance == "tasks":
            limits += "; one run each: this tells about tasks, not about training again"
        if self.chance == "training" and self.tasks is not None:
            limits += "; one task: this tells about training again, not about other tasks"
        if self.seeds == 2 and self.verdict in ("better", "worse"):
            limits += "; two seeds that learned or collapsed by chance may look the same"
        return limits

    def _omissions(self) -> str:
        if not self.missing:
            return ""
        return f"; {count(self.missing, 'score')} left out, not in both arms on every seed"


def check_mode(mode: str) -> None:
    if mode not in ("max", "min"):
        raise SettingError(
            f"mode must be max (more is better) or min, not {mode!r}{did_you_mean(str(mode), ['max', 'min'])}"
        )
