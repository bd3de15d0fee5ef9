"""Which scores of two arms can be compared: those of the same seed on the same task."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import SettingError
from .intervals import finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scores = Mapping[Any, Any]
"""`{seed: {task_id: score}}`, or `{seed: score}` where there are no scores of tasks; None, NaN: no score."""

_NO_TASK = "the whole run"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Scores of two arms, each seeds × tasks without a hole; one task and not `by_task` where there are no tasks."""

    a: NDArray[Any]
    b: NDArray[Any]
    by_task: bool
    missing: int


def pair(a: Scores, b: Scores) -> Pairs:
    """The complete rectangle of seeds and tasks that both arms have scores for.

    Seeds with fewer than half of the paired tasks are left out (a repeat that broke off must not cost the others
    their tasks), then every task that not all remaining seeds have. `missing` counts the seed-task slots of either
    arm that are not used.
    """
    import numpy as np

    by_task = _has_tasks(a, b)
    slots_a, slots_b = _slots(a, by_task), _slots(b, by_task)
    paired = {slot for slot in slots_a.keys() & slots_b.keys() if slots_a[slot] is not None is not slots_b[slot]}
    seeds, tasks = _rectangle(paired)
    # Sums in one order, whatever order the dicts have: the same scores give the same bits.
    seeds, tasks = sorted(seeds, key=repr), sorted(tasks, key=repr)
    grid_a, grid_b = (
        np.array([[slots[seed, task] for task in tasks] for seed in seeds], dtype=float).reshape(len(seeds), len(tasks))
        for slots in (slots_a, slots_b)
    )
    return Pairs(grid_a, grid_b, by_task, len(slots_a.keys() | slots_b.keys()) - grid_a.size)


def _has_tasks(a: Scores, b: Scores) -> bool:
    kinds = {isinstance(scores, Mapping) for arm in (a, b) for scores in arm.values() if scores is not None}
    if len(kinds) == 2:
        raise SettingError("compare needs one form for all repeats: {seed: {task: score}} or {seed: score}, not both")
    return kinds == {True}


def _slots(arm: Scores, by_task: bool) -> dict[tuple[Hashable, Hashable], float | None]:
    slots: dict[tuple[Hashable, Hashable], float | None] = {}
    for seed, scores in arm.items():
        of_tasks = (scores or {}) if by_task else {_NO_TASK: scores}  # a failed repeat has no tasks to miss
        slots |= {(seed, task): finite(score) for task, score in of_tasks.items()}
    return slots


def _rectangle(paired: set[tuple[Hashable, Hashable]]) -> tuple[list[Hashable], list[Hashable]]:
    tasks_of: dict[Hashable, set[Hashable]] = {}
    for seed, task in paired:
        tasks_of.setdefault(seed, set()).add(task)
    all_tasks = {task for _, task in paired}
    seeds = [seed for seed, tasks in tasks_of.items() if 2 * len(tasks) >= len(all_tasks)]
    common = all_tasks.intersection(*(tasks_of[seed] for seed in seeds)) if seeds else set()
    return (seeds, list(common)) if common else ([], [])
