"""Arms compared: their scores with intervals, differences seed by seed, and what each run came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from ..statistics.intervals import Estimate, estimate
from ..statistics.ranking import rank_arms
from ..statistics.runs import ArmScores, compare_runs
from .html import Markup, join, tag
from .interval_chart import Row, interval_chart
from .overview import badge
from .reading import Arm, RunData, Subject
from .section import Section, stroke, table
from .text import number, ran

MOST_METRICS = 6
_NOTE = "◆ mean, bar: 95 % t-interval over repeats, ○ each repeat. Only runs that were completed count."


def arms_compared(subject: Subject) -> Section | None:
    """By the metric that the experiment is judged by, and by those of its evals."""
    if subject.experiment is None or not subject.arms:
        return None
    judged, mode = _judged_by(subject)
    metrics = list(dict.fromkeys([*filter(None, [judged]), *_eval_metrics(subject)]))[:MOST_METRICS]
    against = _against_each_other(subject)
    body: list[Markup] = []
    if metrics:
        body.append(
            tag("div", [_chart(subject.arms, metric, judged, mode, against) for metric in metrics], class_="charts")
        )
    if judged:
        body += _differences([arm for arm in subject.arms if arm.name in against], judged, mode)
    body.append(tag("h3", "Runs"))
    body.append(_runs(subject, metrics))
    return Section("arms", "Arms compared", body)


def _against_each_other(subject: Subject) -> set[str]:
    """The arms that are compared: of stages the last one, as the experiment wrote down; all, where it did not."""
    written = (subject.experiment or {}).get("compared")
    return {str(name) for name in written} if isinstance(written, list) else {arm.name for arm in subject.arms}


def _judged_by(subject: Subject) -> tuple[str | None, Literal["max", "min"]]:
    """What the experiment's configuration says, or else the main score of its only eval."""
    config = (subject.experiment or {}).get("config")
    found = config.get("metadata") if isinstance(config, Mapping) else None
    metadata = found if isinstance(found, Mapping) else {}
    metric = metadata.get("success_metric")
    if not metric:
        names = _eval_metrics(subject)
        metric = names[0] if len({name.rpartition(".")[0] for name in names}) == 1 else None
    return (str(metric) if metric else None), ("min" if metadata.get("mode") == "min" else "max")


def _eval_metrics(subject: Subject) -> list[str]:
    names: dict[str, None] = {}
    for run in subject.runs:
        of_evals = run.result.get("eval_metrics")
        scores = of_evals if isinstance(of_evals, Mapping) and of_evals else run.record.evals if run.record else {}
        for benchmark, metrics in scores.items():
            if isinstance(metrics, Mapping):
                names |= {f"{benchmark}.{metric}": None for metric in metrics if metric != "completion_tokens"}
    return list(names)


def _scores(arm: Arm, metric: str) -> list[float | None]:
    return [run.score(metric) if run.status == "completed" else None for run in arm.runs]


def _chart(arms: Sequence[Arm], metric: str, judged: str | None, mode: str, against: set[str]) -> Markup:
    rows = []
    for place, arm in enumerate(arms):
        found = estimate(_scores(arm, metric))
        shown = [score for score in _scores(arm, metric) if score is not None and _is_number(score)]
        rows.append(Row(arm.name, place, shown, found))
    with_value = {row.name: row.estimate for row in rows if row.estimate.mean is not None and row.name in against}
    title = f"{metric}, {_finding(with_value, mode)}" if metric == judged and with_value else metric
    missing = [f"{row.name}: {_missing(row.estimate)}." for row in rows if row.estimate.missing]
    return interval_chart(title, rows, metric, " ".join([_NOTE, *missing]))


def _finding(estimates: Mapping[str, Estimate], mode: str) -> str:
    best = rank_arms(estimates, "min" if mode == "min" else "max")
    better = "less is better" if mode == "min" else "more is better"
    if len(estimates) < 2:
        return better
    return f"{better}: {' and '.join(best.arms)} {'has' if len(best.arms) == 1 else 'have'} the best mean"


def _missing(found: Estimate) -> str:
    return f"{found.missing} of {found.n + found.missing} runs without a score"


def _differences(arms: Sequence[Arm], metric: str, mode: Literal["max", "min"]) -> list[Markup]:
    """The best arm against each other one, over the seeds that both have."""
    estimates = {arm.name: estimate(_scores(arm, metric)) for arm in arms}
    best = rank_arms(estimates, mode)
    if len(best.ranked) < 2:
        return []
    by_name = {arm.name: arm for arm in arms}
    first, rows = best.ranked[0], []
    for other in best.ranked[1:]:
        scores = [_by_seed(by_name[name], metric) for name in (first, other)]
        found = compare_runs(*scores, mode=mode, names=(first, other))
        between = "" if found.low is None else f"{number(found.low)} to {number(found.high)}"
        pairs = number(found.seeds) + ("" if found.tasks is None else f" × {number(found.tasks)}")
        rows.append((f"{first} − {other}", number(found.difference), between, pairs, found.verdict, found.words))
    note = (
        "Differences within the same seed, and the same task where these are known, so chance that both arms share "
        "falls out. The first arm was picked by these scores, which flatters it. A difference that is not seen may "
        "still be there."
    )
    head = ("arms", "difference", "95 % interval", "seeds × tasks", "verdict", "in words")
    return [tag("h3", f"Differences in {metric}"), tag("p", note, class_="note"), table(head, rows, numbers=(1, 3))]


def _by_seed(arm: Arm, metric: str) -> ArmScores:
    completed = [run for run in arm.runs if run.status == "completed"]
    return ArmScores.collect([(_seed(run, arm), run.score(metric), run.task_scores(metric)) for run in completed])


def _seed(run: RunData, arm: Arm) -> int:
    """By place where the seeds are not known."""
    return arm.runs.index(run) if run.seed is None else run.seed


def _runs(subject: Subject, metrics: Sequence[str]) -> Markup:
    rows = []
    for place, arm in enumerate(subject.arms):
        for run in arm.runs:
            scores = [number(run.score(metric)) for metric in metrics]
            rows.append(
                [
                    join([stroke(place), arm.name]),
                    run.key,
                    number(run.seed),
                    badge(run.status),
                    *_far(run),
                    *scores,
                    run.error,
                ]
            )
    head = ["arm", "run", "seed", "status", "steps", "time", *metrics, "what went wrong"]
    if not any(run.error for run in subject.runs):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return table(head, rows, numbers=(2, 4, 5, *range(6, 6 + len(metrics))))


def _far(run: RunData) -> Iterator[str]:
    record = run.record
    yield "" if record is None else number(record.steps_done)
    yield "" if record is None else ran(record.running_time)


def _is_number(score: float) -> bool:
    return score - score == 0
