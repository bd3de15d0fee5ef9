"""Curves over the steps: what training measured, and what evals scored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ..data.results import latest_evals
from .chart import Chart, Line, line_chart
from .curves import EVERYWHERE, FEW_REPEATS, Curve, Series, curve_of
from .gradients import is_layer_norm
from .html import Markup, tag
from .metrics import IDLE
from .reading import Arm, Subject
from .section import Section, arm_legend, folded, table
from .text import count, number

Kind = Literal["training", "evals"]
FIRST = (
    "reward",
    "loss",
    "reward_std",
    "kl_to_reference",
    "entropy",
    "grad_norm",
    "completion_tokens",
    "reward_zero_std_fraction",
    "truncated_fraction",
    "reward_failed_fraction",
    "ratio",
    "learning_rate",
)
SHOWN = 6
"""Charts that are there without asking."""
MOST_CHARTS = 60
PIPELINE = ("staleness", *IDLE.values(), "maker.tokens_per_second", "samples", "makers")
_UNITS = {
    "staleness": "versions behind", "samples": "samples a step", "makers": "makers", "entropy": "nats a token",
    "grad_norm": "norm", "ratio": "probability ratio", "completion_tokens": "tokens", "kl_to_reference": "nats",
    "learning_rate": "learning rate", "clipped_low": "share of tokens", "clipped_high": "share of tokens",
    "reward_zero_std_fraction": "share of groups", "truncated_fraction": "share of samples",
    "reward_failed_fraction": "share of samples",
}  # fmt: skip


def learning_curves(subject: Subject) -> Section | None:
    """All that training measured but what tells of the pipeline, and the norms of single layers."""
    found = _names(subject.arms, "training")
    names = [name for name in found if not _is_of_pipeline(name) and not is_layer_norm(name)]
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    return _section(subject, "learning", "Learning curves", names, "training")


def evals_over_steps(subject: Subject) -> Section | None:
    """The scores of evals while the run went on."""
    names = [name for name in _names(subject.arms, "evals") if _is_repeated(subject.arms, name)]
    section = _section(subject, "evals", "Evals over steps", names, "evals")
    breakdowns = _breakdowns(subject)
    if breakdowns and section is None:
        return Section("evals", "Evals", breakdowns)
    if section is not None:
        section.body += breakdowns
    return section


def pipeline_curves(subject: Subject) -> Section | None:
    """Staleness, and how idle the trainer and the makers were."""
    names = [name for name in _names(subject.arms, "training") if _is_of_pipeline(name)]
    names.sort(key=lambda name: PIPELINE.index(name) if name in PIPELINE else len(PIPELINE))
    return _section(subject, "pipeline", "Staleness and idle time", names, "training", shown=3)


def unit_of(name: str) -> str:
    """What stands at the vertical axis."""
    if name in _UNITS:
        return _UNITS[name]
    endings = {
        "_seconds": "seconds a step",
        "share": "share of its time",
        "tokens_per_second": "tokens/s",
        ".completion_tokens": "tokens",
    }
    return next((unit for ending, unit in endings.items() if name.endswith(ending)), name.rpartition(".")[2])


_SHARES = ("exact", "correct", "accuracy", "pass_rate", "share", "fraction", "clipped_low", "clipped_high")
_POSITIVE = ("_seconds", "_std", "tokens", "tokens_per_second", "norm", "entropy", "staleness", "samples", "makers")


def known_range(name: str) -> tuple[float, float]:
    """What values of a metric can be, as far as its name says.

    >>> known_range("sort_digits.exact"), known_range("grad_norm"), known_range("reward")
    ((0.0, 1.0), (0.0, inf), (-inf, inf))
    """
    last = name.rpartition(".")[2]
    if last.endswith(_SHARES) or last.startswith("pass@"):
        return 0.0, 1.0
    return (0.0, math.inf) if last.endswith(_POSITIVE) else EVERYWHERE


def _section(
    subject: Subject, place: str, title: str, names: Sequence[str], kind: Kind, shown: int = SHOWN
) -> Section | None:
    lines = {name: found for name in names[:MOST_CHARTS] if (found := _lines(subject.arms, name, kind))}
    if not lines:
        return None
    notes = {_note(found) for found in lines.values()}
    shared = notes.pop() if len(notes) == 1 else ""
    charts = {}
    for name, found in lines.items():
        note = "" if shared else _note(found)
        charts[name] = line_chart(f"{kind}/{name}", _title(name, found, len(subject.arms)), found, unit_of(name), note)
    body = [arm_legend(subject.arms), tag("p", shared, class_="note") if shared else None, *_grids(charts, shown)]
    if len(names) > MOST_CHARTS:
        left = f"{count(len(names) - MOST_CHARTS, 'more metric')} in metrics.jsonl are not drawn."
        body.append(tag("p", left, class_="note"))
    data = {f"{kind}/{name}": chart.data for name, chart in charts.items()}
    return Section(place, title, [part for part in body if part is not None], data)


def _lines(arms: Sequence[Arm], name: str, kind: Kind) -> list[Line]:
    """What every arm that has values of this metric has in its chart."""
    return [
        Line(arm.name, place, curve)
        for place, arm in enumerate(arms)
        if (curve := curve_of(_series(arm, name, kind), known_range(name))) is not None
    ]


def _grids(charts: Mapping[str, Chart], shown: int) -> Iterator[Markup]:
    """The first so many, and the others folded, by their names."""
    names = list(charts)
    yield _grid([charts[name] for name in names[:shown]])
    more = names[shown:]
    if more:
        some = f"{', '.join(more[:6])}{' …' if len(more) > 6 else ''}"
        yield folded(f"{len(more)} more: {some}", _grid([charts[name] for name in more]))


def _grid(charts: Sequence[Chart]) -> Markup:
    return tag("div", [chart.figure for chart in charts], class_="charts")


def _names(arms: Sequence[Arm], kind: Kind) -> list[str]:
    found: dict[str, None] = {}
    for arm in arms:
        for run in arm.runs:
            found |= dict.fromkeys(run.metrics.training if kind == "training" else run.metrics.evals)
    return list(found)


def _series(arm: Arm, name: str, kind: Kind) -> list[Series]:
    of_runs = (run.metrics.training if kind == "training" else run.metrics.evals for run in arm.runs)
    return [series[name] for series in of_runs if name in series]


def _is_repeated(arms: Sequence[Arm], name: str) -> bool:
    """Whether there is more than one point to draw: a benchmark after training is a score, no curve."""
    return any(len(series) > 1 for arm in arms for series in _series(arm, name, "evals"))


def _is_of_pipeline(name: str) -> bool:
    return name in PIPELINE or name.startswith(("trainer.", "maker."))


def _title(name: str, lines: Sequence[Line], arms: int) -> str:
    """What is seen."""
    if arms > 1:
        return f"{name}, {count(len(lines), 'arm')}"
    values = [value for value in lines[0].curve.values if value == value]
    if len(values) < 2:
        return name
    return (
        f"{name}: {number(values[0])} to {number(values[-1])}"
        if values[0] != values[-1]
        else f"{name}: {number(values[0])}"
    )


def _note(lines: Sequence[Line]) -> str:
    """What a line and a band are."""
    repeated = [line.curve for line in lines if line.curve.runs > 1]
    if repeated:
        alone = [line.name for line in lines if line.curve.runs == 1]
        return " ".join([_band_words(repeated), *(f"{name}: one run, no band." for name in alone)])
    thin = [line.curve for line in lines if line.curve.points > len(line.curve.steps)]
    if thin:
        most = max(thin, key=lambda curve: curve.points)
        return f"{len(most.steps):,} of {most.points:,} points: the least and the greatest of every stretch of steps."
    return ""


def _band_words(curves: Sequence[Curve]) -> str:
    counts = sorted({curve.runs for curve in curves})
    repeats = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    every = max(curve.every for curve in curves)
    points = f"; each point is the mean of {every:,} steps" if every > 1 else ""
    if counts[-1] <= FEW_REPEATS:
        return f"Thick line: mean of {repeats} repeats{points}; thin lines: each of them."
    return f"Line: mean of {repeats} repeats; band: 95 % t-interval{points}."


_OF_A_PART = ("n", "mean_reward", "pass_rate")


def _breakdowns(subject: Subject) -> list[Markup]:
    """The last scores of each eval by what its rows are tagged with."""
    rows: list[tuple[Any, ...]] = []
    for run in subject.told:
        for result in latest_evals(run.evals).values():
            for key, values in result.breakdowns.items():
                rows += [
                    (run.arm, result.name, f"{key}: {value}", *(number(scores.get(name)) for name in _OF_A_PART))
                    for value, scores in values.items()
                ]
    if not rows:
        return []
    head = ["arm", "eval", "part", "n", "mean reward", "pass rate"]
    if len(subject.arms) < 2:
        head, rows = head[1:], [row[1:] for row in rows]
    return [
        folded(f"By part: {count(len(rows), 'row')}", table(head, rows[:500], numbers=range(len(head) - 3, len(head))))
    ]
