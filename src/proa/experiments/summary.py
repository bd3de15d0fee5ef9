"""What came of an experiment: statistics over repeats, the best arm, and a conclusion in words."""

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

log = logging.getLogger("proa.experiments")

NOT_RUN = "not run"
"""What became of a run that never started; the error of a stage that was not reached starts with it."""
NO_NUMBER = "without a number"
BY_LAST_STAGE = "Each arm is judged by its last stage."


def summarise(
    result: ExperimentResult,
    arms: list[ArmResult],
    arm_of: Mapping[str, str],
    config: ExperimentConfig,
    compared: Collection[str] | None = None,
) -> None:
    """Fill a result in. `arm_of` says which arm each planned run is a repeat of, also of those that did not come to be
    run; every arm has a group, and in a continual experiment every stage of one. `compared` are the groups that stand
    against each other, by default all: stages do not, for each begins where another ended."""
    result.arms = arms
    result.mode = config.metadata.mode
    result.task_scores = task_scores
    result.groups = _groups(arms, arm_of)
    result.success_metric = config.metadata.success_metric or _only_metric(arms)
    if result.success_metric is None:
        failed = _lacking(result, None)
        known = result.metric_names()
        result.conclusion = without_metric(known, failed=failed, hypothesis=config.metadata.hypothesis)
    else:
        _judge(result, result.success_metric, config.metadata.hypothesis, compared or result.groups.keys())


def task_scores(arm: ArmResult, metric: str) -> dict[str, float | None] | None:
    """The mean reward of each task of a benchmark, if `metric` is that and its predictions are there."""
    benchmark, _, name = metric.rpartition(".")
    results = [result for result in arm.evals if result.name == benchmark]
    if not results or next(iter(results[-1].metrics), None) != name:
        return None
    try:
        return task_means(EvalRecord(arm.run_config.folder).predictions(benchmark, results[-1].step)) or None
    except FileNotFoundError:
        return None
    except BrokenRecordError as error:
        log.warning("%s is compared without scores of tasks: %s", arm.name, error)
        return None


def _judge(result: ExperimentResult, metric: str, hypothesis: str | None, compared: Collection[str]) -> None:
    """The best arm, whether chance may have made it so, and the words for both."""
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
        failed={name: fate for name, fate in _lacking(result, metric).items() if name in compared},
        hypothesis=hypothesis,
    )
    result.conclusion = said if len(means) == len(result.groups) else f"{said} {BY_LAST_STAGE}"


def _groups(arms: Sequence[ArmResult], arm_of: Mapping[str, str]) -> dict[str, GroupResult]:
    groups: dict[str, GroupResult] = {}
    for key, name in arm_of.items():
        groups.setdefault(name, GroupResult(name)).runs.append(key)
    by_name = {arm.name: arm for arm in arms}
    for group in groups.values():
        of_group = [by_name.get(key) for key in group.runs]
        names = dict.fromkeys(metric for arm in of_group if arm is not None for metric in arm.metric_names())
        group.metrics = {metric: estimate([_score(arm, metric) for arm in of_group]) for metric in names}
    return groups


def _score(arm: ArmResult | None, metric: str) -> float | None:
    """None where the run was not completed: what it scored before it broke off is not comparable."""
    return arm.score(metric) if arm is not None and arm.status == "completed" else None


def _lacking(result: ExperimentResult, metric: str | None) -> dict[str, str]:
    """Arms that lack repeats, or their values of the metric, and what became of these.

    One run: `failed`. Several: `2 of 3 repeats failed`, `1 of 3 repeats failed, 1 not run`.
    """
    by_name = {arm.name: arm for arm in result.arms}
    found: dict[str, str] = {}
    for name, group in result.groups.items():
        fates = Counter(fate for key in group.runs if (fate := _fate(by_name.get(key), metric)) is not None)
        if fates[NO_NUMBER] == len(group.runs):
            continue  # that it is without a value says it all
        if fates and len(group.runs) == 1:
            found[name] = next(iter(fates))
        elif fates:
            (first, count), *others = fates.most_common()
            of_all = f"{count} of {len(group.runs)} repeats {first}"
            found[name] = ", ".join([of_all, *(f"{count} {fate}" for fate, count in others)])
    return found


def _fate(arm: ArmResult | None, metric: str | None) -> str | None:
    """What became of a run that nothing can be said by; None if something can."""
    if arm is None or arm.status == "pending" or (arm.error or "").startswith(NOT_RUN):
        return NOT_RUN
    if arm.status != "completed":
        return arm.status
    return NO_NUMBER if metric is not None and finite(arm.score(metric)) is None else None


def _only_metric(arms: Sequence[ArmResult]) -> str | None:
    """What an experiment is judged by if nobody said: its one eval's score."""
    evals = {name: metrics for arm in arms for name, metrics in arm.eval_metrics.items()}
    if len(evals) != 1:
        return None
    name, metrics = next(iter(evals.items()))
    return f"{name}.{next(iter(metrics))}" if metrics else None
