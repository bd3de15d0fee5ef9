"""Two arms' runs compared: by task where both were scored on the same tasks, else by seed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from .comparison import Comparison, Mode
from .pairing import same_tasks
from .pairwise import compare


@dataclass(frozen=True, slots=True)
class ArmScores:
    """The scores of one arm's runs by seed, and by task where every run has scores of tasks."""

    by_seed: Mapping[Hashable, float | None]
    by_task: Mapping[Hashable, Mapping[str, float | None]] | None = None

    @classmethod
    def collect(cls, runs: Iterable[tuple[Hashable, float | None, Mapping[str, float | None] | None]]) -> ArmScores:
        """From `(seed, score, scores of tasks)` of each run.

        >>> ArmScores.collect([(0, 0.5, {"x": 0.0, "y": 1.0}), (1, 0.7, None)])  # no tasks: one run's are not known
        ArmScores(by_seed={0: 0.5, 1: 0.7}, by_task=None)
        """
        by_seed: dict[Hashable, float | None] = {}
        by_task: dict[Hashable, Mapping[str, float | None]] = {}
        for seed, score, tasks in runs:
            by_seed[seed] = score
            if tasks is not None:
                by_task[seed] = tasks
        return cls(by_seed, by_task if by_task and by_task.keys() == by_seed.keys() else None)


def compare_runs(a: ArmScores, b: ArmScores, *, mode: Mode = "max", names: tuple[str, str] = ("a", "b")) -> Comparison:
    """`compare`, by task if both arms have scores of the same tasks. If the tasks differ, the words say so.

    >>> sort, reverse = {"0 sort 21": 1.0, "1 sort 31": 0.0}, {"0 reverse 21": 1.0, "1 reverse 31": 1.0}
    >>> compare_runs(ArmScores({0: 0.5}, {0: sort}), ArmScores({0: 1.0}, {0: reverse})).words[-42:]
    '; the arms were scored on different tasks.'
    """
    differ = False
    if a.by_task is not None and b.by_task is not None:
        differ = not same_tasks(a.by_task, b.by_task)
        found = compare(a.by_task, b.by_task, mode=mode, names=names)
        if not differ and found.difference is not None:
            return found
    found = compare(a.by_seed, b.by_seed, mode=mode, names=names)
    if not differ:
        return found
    return replace(found, words=f"{found.words.removesuffix('.')}; the arms were scored on different tasks.")
