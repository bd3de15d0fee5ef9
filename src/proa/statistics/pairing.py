"""Which scores of two arms can be compared: those of the same seed on the same task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import SettingError
from .intervals import finite

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Scores = Mapping[Any, Any]
"""`{seed: {task_id: score}}`, or `{seed: score}` where there are no scores of tasks; None, NaN: no score."""

_NO_TASK = "the whole run"
_Tasks = dict[Hashable, set[Hashable]]  # of each seed


@dataclass(frozen=True, slots=True)
class Pairs:
    """Scores of two arms, each seeds × tasks without a hole; one column where there are no tasks (`tasks` is None).

    With `own_tasks` each seed had other tasks, and the one column is each seed's mean over its own. `tasks` is the
    number of distinct tasks, `count` that of pairs, `missing` that of scores in no pair.
    """

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    tasks: int | None
    own_tasks: bool
    count: int
    missing: int


def pair(a: Scores, b: Scores) -> Pairs:
    """The complete rectangle of seeds and tasks that both arms have scores for.

    Seeds with fewer than half of the paired tasks are left out (a repeat that broke off must not cost the others
    their tasks), then every task that not all remaining seeds have. Where each seed drew tasks of its own there is no
    rectangle: the pairs of each seed are averaged. `missing` counts the seed-task slots of either arm that are not
    used.
    """
    import numpy as np

    kinds = {isinstance(scores, Mapping) for arm in (a, b) for scores in arm.values() if scores is not None}
    if len(kinds) == 2:
        raise SettingError("compare needs one form for all repeats: {seed: {task: score}} or {seed: score}, not both")
    by_task = kinds == {True}
    slots_a, slots_b = _slots(a, by_task), _slots(b, by_task)
    paired = {slot for slot in slots_a.keys() & slots_b.keys() if slots_a[slot] is not None is not slots_b[slot]}
    seed_tasks: _Tasks = {}
    for seed, task in paired:
        seed_tasks.setdefault(seed, set()).add(task)
    if _disjoint(seed_tasks):
        # The mean of a seed that has fewer than half as many tasks as another would be too uncertain.
        most = max(map(len, seed_tasks.values()))
        seed_tasks = {seed: tasks for seed, tasks in seed_tasks.items() if 2 * len(tasks) >= most}
    own = _disjoint(seed_tasks)  # False if that left one seed
    # Sums in one order, whatever order the dicts have: the same scores give the same bits.
    used = {seed: sorted(tasks, key=repr) for seed, tasks in (seed_tasks if own else _rectangle(seed_tasks)).items()}
    seeds = sorted(used, key=repr)
    rows_a, rows_b = (
        [np.array([slots[seed, task] for task in used[seed]], dtype=float) for seed in seeds]
        for slots in (slots_a, slots_b)
    )
    grid_a, grid_b = (
        np.array([[row.mean()] if own else row for row in rows], dtype=float).reshape(len(seeds), -1 if seeds else 0)
        for rows in (rows_a, rows_b)
    )
    tasks = len(set().union(*used.values())) if by_task else None
    count = sum(map(len, used.values()))
    return Pairs(grid_a, grid_b, tasks, own, count, len(slots_a.keys() | slots_b.keys()) - count)


def same_tasks(a: Scores, b: Scores) -> bool:
    """Were two arms scored on the same tasks? Where they share a seed, at least half of the tasks are in both.

    >>> same_tasks({0: {"x": 1.0, "y": 0.0}}, {0: {"x": 0.5, "z": 0.5}}), same_tasks({0: {"x": 1.0}}, {0: {"y": 1.0}})
    (True, False)
    """
    both = [(a[seed].keys(), b[seed].keys()) for seed in a.keys() & b.keys()]
    common = sum(len(tasks_a & tasks_b) for tasks_a, tasks_b in both)
    return 2 * common >= max((sum(map(len, arm_tasks)) for arm_tasks in zip(*both, strict=True)), default=0)


def _slots(arm: Scores, by_task: bool) -> dict[tuple[Hashable, Hashable], float | None]:
    slots: dict[tuple[Hashable, Hashable], float | None] = {}
    for seed, scores in arm.items():
        task_scores = (scores or {}) if by_task else {_NO_TASK: scores}  # a failed repeat has no tasks to miss
        slots |= {(seed, task): finite(score) for task, score in task_scores.items()}
    return slots


def _disjoint(seed_tasks: _Tasks) -> bool:
    """Whether several seeds each drew their own tasks: most tasks of each are in no other seed."""
    seeds = Counter(task for tasks in seed_tasks.values() for task in tasks)
    unshared = (2 * sum(seeds[task] == 1 for task in tasks) > len(tasks) for tasks in seed_tasks.values())
    return len(seed_tasks) > 1 and all(unshared)


def _rectangle(seed_tasks: _Tasks) -> _Tasks:
    """The tasks that all seeds have which have at least half of them."""
    all_tasks = set().union(*seed_tasks.values())
    seeds = [seed for seed, tasks in seed_tasks.items() if 2 * len(tasks) >= len(all_tasks)]
    common = all_tasks.intersection(*(seed_tasks[seed] for seed in seeds)) if seeds else set()
    return dict.fromkeys(seeds, common) if common else {}
