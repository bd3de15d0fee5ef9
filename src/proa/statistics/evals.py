"""Metrics of a benchmark from its predictions: means, pass@k, and breakdowns."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SettingError
from ..spelling import did_you_mean
from .intervals import finite

Row = Mapping[str, Any]
NO_VALUE = "(none)"
"""The slice of a breakdown that counts rows without a value."""


@dataclass(frozen=True, slots=True)
class _Scored:
    task: Hashable
    reward: float
    correct: bool | None  # None: not judged


def summarise(
    rows: Iterable[Row], *, k: int | Sequence[int] = (), keys: Sequence[str] = ()
) -> tuple[dict[str, float], dict[str, dict[str, dict[str, float]]]]:
    """`(metrics, breakdowns)` of rows with `task_id`, `reward`, perhaps `correct`, and any columns.

    A row whose reward is None or NaN is a scoring error: counted in `errors`, left out of means and rates.
    Metrics are `n` (rows scored), `errors`, `tasks`, `mean_reward`, `pass_rate` (over rows with `correct`), and for
    each k `pass@k`, `mean@k` and `pass@k_tasks`, the number of tasks with k judged completions, over which both are
    averaged. `breakdowns[key][value]` is `{n, mean_reward, pass_rate}`; a list, such as tags, counts under each of
    its values. The mean of nothing is NaN.

    >>> rows = [{"task_id": t, "reward": r, "correct": r == 1} for t, r in (("x", 1), ("x", 0), ("y", 0), ("y", None))]
    >>> metrics, _ = summarise(rows, k=2)
    >>> metrics["n"], metrics["errors"], round(metrics["pass_rate"], 3), metrics["pass@2"], metrics["pass@2_tasks"]
    (3, 1, 0.333, 1.0, 1)
    """
    table = [(row, _scored(row)) for row in rows]
    scored = [one for _, one in table if one is not None]
    counted = _counts(scored)
    metrics: dict[str, float] = {
        "n": counted["n"],
        "errors": len(table) - len(scored),
        "tasks": len({row["task_id"] for row, _ in table}),
        "mean_reward": counted["mean_reward"],
        "pass_rate": counted["pass_rate"],
    }
    for size in (k,) if isinstance(k, int) else k:
        metrics |= _metrics_for_k(scored, size)
    return metrics, {key: _breakdown(table, key) for key in keys}


def task_means(rows: Iterable[Row]) -> dict[str, float | None]:
    """The mean reward of each task, None where no completion of it was scored.

    A task is identified by its `task_id` and its prompt: an id may be an index, the same in two different lists.

    >>> rows = [{"task_id": "0", "prompt": "1+1=", "reward": reward} for reward in (1.0, 0.0, None)]
    >>> task_means(rows)
    {'0 2153da11': 0.5}
    """
    rewards: dict[str, list[float]] = {}
    for row in rows:
        prompt = json.dumps(row.get("prompt"), sort_keys=True, default=str)  # a text, or a list of messages
        task = f"{row.get('task_id')} {hashlib.sha256(prompt.encode()).hexdigest()[:8]}"
        task_rewards = rewards.setdefault(task, [])
        if (reward := finite(row.get("reward"))) is not None:
            task_rewards.append(reward)
    return {task: _mean(values) if values else None for task, values in rewards.items()}


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The unbiased estimate of pass@k from n completions, c of them correct: 1 − C(n−c, k) / C(n, k).

    Chen et al., arXiv:2107.03374.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    if not 0 <= correct <= n:
        raise SettingError(f"{correct} of {n} completions cannot be correct")
    _check_k(k, most=n)
    # Exact integers until the division: products of ratios lose digits where nearly all, or nearly none, are correct.
    draws = math.comb(n, k)
    return (draws - math.comb(n - correct, k)) / draws


def mean_at_k(rewards: Sequence[float], k: int) -> float:
    """The expected mean of k of these rewards: the mean of all of them, if there are k."""
    _check_k(k, most=len(rewards))
    return math.fsum(rewards) / len(rewards)


def _metrics_for_k(scored: list[_Scored], k: int) -> dict[str, float]:
    by_task: dict[Hashable, list[_Scored]] = {}
    for one in scored:
        if one.correct is not None:
            by_task.setdefault(one.task, []).append(one)
    if by_task:
        _check_k(k, most=max(map(len, by_task.values())))
    enough = [ones for ones in by_task.values() if len(ones) >= k]
    return {
        f"pass@{k}": _mean([pass_at_k(len(ones), sum(bool(one.correct) for one in ones), k) for ones in enough]),
        f"mean@{k}": _mean([mean_at_k([one.reward for one in ones], k) for ones in enough]),
        f"pass@{k}_tasks": len(enough),
    }


def _breakdown(table: list[tuple[Row, _Scored | None]], key: str) -> dict[str, dict[str, float]]:
    columns = sorted({name for row, _ in table for name in row})
    if table and key not in columns:
        raise SettingError(f"no prediction has {key!r} to break down by{did_you_mean(key, columns)}")
    slices: dict[str, list[_Scored]] = {}
    for row, one in table:
        for value in _values(row.get(key)):
            slices.setdefault(value, []).extend([one] if one is not None else [])
    return {value: _counts(slices[value]) for value in sorted(slices)}


def _values(value: Any) -> list[str]:
    several = isinstance(value, list | tuple | set | frozenset)
    values = {str(one) for one in (value if several else [value]) if one is not None}
    return sorted(values) or [NO_VALUE]


def _counts(scored: list[_Scored]) -> dict[str, float]:
    return {
        "n": len(scored),
        "mean_reward": _mean([one.reward for one in scored]),
        "pass_rate": _mean([float(one.correct) for one in scored if one.correct is not None]),
    }


def _scored(row: Row) -> _Scored | None:
    for name in ("task_id", "reward"):
        if name not in row:
            raise SettingError(f"a prediction has no {name!r}: it has {', '.join(row)}")
    reward, correct = finite(row["reward"]), finite(row.get("correct"))
    return None if reward is None else _Scored(row["task_id"], reward, None if correct is None else bool(correct))


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _check_k(k: int, most: int) -> None:
    if not 1 <= k <= most:
        raise SettingError(f"pass@{k} needs k from 1 to the completions of a task, here at most {most}; sample more")
