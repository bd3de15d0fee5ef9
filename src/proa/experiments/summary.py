"""What came of an experiment: statistics over repeats, the best arm, and a conclusion in words."""

from __future__ import annotations

import logging
from typing import Any

from ..config import ExperimentConfig
from ..data.results import ArmResult, ExperimentResult, GroupResult
from ..record.evals import EvalRecord
from ..spelling import did_you_mean
from ..statistics import Comparison, best_of, conclusion, estimate

log = logging.getLogger("proa.experiments")


def summarise(
    result: ExperimentResult, arms: list[ArmResult], arm_of: dict[str, str], config: ExperimentConfig
) -> None:
    """Fill a result in. `arm_of` says which arm a run is a repeat of; every arm has a group, also of one run."""
    metadata = config.metadata
    result.arms = arms
    result.mode = metadata.mode
    result.task_scores = task_scores
    result.groups = _groups(arms, arm_of)
    result.success_metric = metadata.success_metric or _only_metric(arms)
    if result.success_metric is None:
        return
    known = [metric for group in result.groups.values() for metric in group.metrics]
    if known and result.success_metric not in known:
        log.warning("no run has a metric %r%s", result.success_metric, did_you_mean(result.success_metric, known))
    means = {name: group.metrics.get(result.success_metric) for name, group in result.groups.items()}
    best = best_of(means, metadata.mode)
    result.best_arm, result.best_score = best.arm, best.score
    failed = {
        name: "failed"
        for name, group in result.groups.items()
        if all(arm.status != "completed" for arm in arms if arm.name in group.runs)
    }
    against: Comparison | None = None
    if best.arm is not None and len(best.ranked) > 1:
        against = result.compare(best.ranked[0], best.ranked[1])
    result.conclusion = conclusion(
        means,
        metric=result.success_metric,
        mode=metadata.mode,
        comparison=against,
        failed=failed,
        hypothesis=metadata.hypothesis,
    )


def task_scores(arm: ArmResult, metric: str) -> dict[str, float | None] | None:
    """The mean reward of each task of a benchmark, if `metric` is that and its predictions are there."""
    benchmark, _, name = metric.rpartition(".")
    results = [result for result in arm.evals if result.name == benchmark]
    if not results or next(iter(results[-1].metrics), None) != name:
        return None
    try:
        rows = EvalRecord(arm.run_config.folder).predictions(benchmark, results[-1].step)
    except FileNotFoundError:
        return None
    rewards: dict[str, list[float]] = {}
    for row in rows:
        given = rewards.setdefault(str(row["task_id"]), [])
        if row["reward"] is not None:
            given.append(float(row["reward"]))
    return {task: sum(values) / len(values) if values else None for task, values in rewards.items()}


def _groups(arms: list[ArmResult], arm_of: dict[str, str]) -> dict[str, GroupResult]:
    groups: dict[str, GroupResult] = {}
    members: dict[str, list[ArmResult]] = {}
    for arm in arms:
        name = arm_of[arm.name]
        members.setdefault(name, []).append(arm)
        groups.setdefault(name, GroupResult(name)).runs.append(arm.name)
    for name, group in groups.items():
        of_group = members[name]
        names = dict.fromkeys(metric for arm in of_group for metric in _metric_names(arm))
        group.metrics = {
            metric: estimate([arm.score(metric) if arm.status == "completed" else None for arm in of_group])
            for metric in names
        }
    return groups


def _metric_names(arm: ArmResult) -> list[str]:
    evals = [f"{name}.{metric}" for name, metrics in arm.eval_metrics.items() for metric in metrics]
    return [*evals, *(name for name in arm.metrics if name not in evals)]


def _only_metric(arms: list[ArmResult]) -> str | None:
    """What an experiment is judged by if nobody said: its one eval's score."""
    evals: dict[str, Any] = {name: metrics for arm in arms for name, metrics in arm.eval_metrics.items()}
    if len(evals) != 1:
        return None
    name, metrics = next(iter(evals.items()))
    return f"{name}.{next(iter(metrics))}" if metrics else None
