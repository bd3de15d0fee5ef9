"""The results of an experiment: statistics over repeats, the best arm, and a conclusion in words."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ..config import ExperimentConfig
from ..data.results import ArmResult, ExperimentResult, GroupResult
from ..record.evals import EvalRecord
from ..record.run_folder import BrokenRecordError
from ..spelling import did_you_mean
from ..statistics import conclusion, estimate, rank_arms, task_means, without_metric
from ..statistics.intervals import finite

log = logging.getLogger("proa.run")

NOT_RUN = "not run"
"""The outcome of a run that never started; the error of a stage that was not reached starts with it."""
NO_NUMBER = "without a number"
BY_LAST_STAGE = "Each arm is judged by its last stage."


def summarise(
    result: ExperimentResult,
    arms: list[ArmResult],
    arm_names: Mapping[str, str],
    config: ExperimentConfig,
    compared: Collection[str] | None = None,
) -> None:
    """Fill in a result.

    `arm_names` gives the arm of each planned run, also of those that were not run; every arm, and in a continual
    experiment every stage, has a group. `compared` are the groups to compare, by default all: stages are not compared
    with each other, because each starts where another ended.
    """
    result.arms = arms
    result.mode = config.metadata.mode
    result.task_scores = task_scores
    result.groups = _groups(arms, arm_names)
    result.success_metric = config.metadata.success_metric or _default_metric(arms)
    if result.success_metric is None:
        failed = _incomplete(result, None)
        known = result.metric_names()
        result.conclusion = without_metric(known, failed=failed, hypothesis=config.metadata.hypothesis)
    else:
        _judge(result, result.success_metric, config.metadata.hypothesis, compared or result.groups.keys())


def task_scores(arm: ArmResult, metric: str) -> dict[str, float | None] | None:
    """The mean reward of each task of a benchmark, if that is what `metric` is and its predictions exist."""
    benchmark, _, name = metric.rpartition(".")
    result = arm.eval(benchmark)
    if result is None or next(iter(result.metrics), None) != name:
        return None
    try:
        return task_means(EvalRecord(arm.run_config.folder).predictions(benchmark, result.step)) or None
    except FileNotFoundError:
        return None
    except BrokenRecordError as error:
        log.warning("%s is compared without the scores of tasks: %s", arm.name, error)
        return None


def _judge(result: ExperimentResult, metric: str, hypothesis: str | None, compared: Collection[str]) -> None:
    """Set the best arm and the conclusion, which says whether it may be best by chance."""
    known = result.metric_names()
    if known and metric not in known:
        log.warning("no run has a metric %r%s", metric, did_you_mean(metric, known))
    means = {name: group.metrics.get(metric) for name, group in result.groups.items() if name in compared}
    best = rank_arms(means, result.mode)
    result.best_arm, result.best_score = best.arm, best.score
    has_next = best.arm is not None and len(best.ranked) > 1
    said = conclusion(
        means,
        metric=metric,
        mode=result.mode,
        comparison=result.compare(best.ranked[0], best.ranked[1]) if has_next else None,
        failed={name: outcome for name, outcome in _incomplete(result, metric).items() if name in compared},
        hypothesis=hypothesis,
    )
    result.conclusion = said if len(means) == len(result.groups) else f"{said} {BY_LAST_STAGE}"


def _groups(arms: Sequence[ArmResult], arm_names: Mapping[str, str]) -> dict[str, GroupResult]:
    groups: dict[str, GroupResult] = {}
    for key, name in arm_names.items():
        groups.setdefault(name, GroupResult(name)).runs.append(key)
    by_name = {arm.name: arm for arm in arms}
    for group in groups.values():
        members = [by_name.get(key) for key in group.runs]
        names = dict.fromkeys(metric for arm in members if arm is not None for metric in arm.metric_names())
        # The scores of a run that was not completed are not comparable.
        completed = [arm if arm is not None and arm.status == "completed" else None for arm in members]
        group.metrics = {
            metric: estimate([None if arm is None else arm.score(metric) for arm in completed]) for metric in names
        }
    return groups


def _incomplete(result: ExperimentResult, metric: str | None) -> dict[str, str]:
    """Arms without all their repeats, or without a value of the metric for all, and what happened to these.

    One run: `failed`. Several: `2 of 3 repeats failed`, `1 of 3 repeats failed, 1 not run`.
    """
    by_name = {arm.name: arm for arm in result.arms}
    found: dict[str, str] = {}
    for name, group in result.groups.items():
        outcomes = Counter(one for key in group.runs if (one := _problem(by_name.get(key), metric)) is not None)
        if outcomes[NO_NUMBER] == len(group.runs):
            continue  # the conclusion lists it as without a value
        if outcomes and len(group.runs) == 1:
            found[name] = next(iter(outcomes))
        elif outcomes:
            (first, count), *others = outcomes.most_common()
            found[name] = ", ".join(
                [f"{count} of {len(group.runs)} repeats {first}", *(f"{count} {outcome}" for outcome, count in others)]
            )
    return found


def _problem(arm: ArmResult | None, metric: str | None) -> str | None:
    """Why a run does not count: how it ended, or that it has no value of the metric; None if it counts."""
    if arm is None or arm.status == "pending" or (arm.error or "").startswith(NOT_RUN):
        return NOT_RUN
    if arm.status != "completed":
        return arm.status
    return NO_NUMBER if metric is not None and finite(arm.score(metric)) is None else None


def _default_metric(arms: Sequence[ArmResult]) -> str | None:
    """The first metric of the only eval; None if there are several evals or none."""
    evals = {name: metrics for arm in arms for name, metrics in arm.eval_metrics.items()}
    if len(evals) != 1:
        return None
    name, metrics = next(iter(evals.items()))
    return f"{name}.{next(iter(metrics))}" if metrics else None
