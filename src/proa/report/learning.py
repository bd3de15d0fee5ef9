"""Curves over the steps: what training measured, and what evals scored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from .chart import Chart, Line, line_chart
from .curves import Curve, Series, curve_of
from .html import Markup, tag
from .metrics import IDLE
from .reading import Arm, Subject
from .section import Section, arm_legend, folded, table
from .text import count, number

Kind = Literal["training", "evals"]
FIRST = ("reward", "loss", "reward_std", "kl_to_reference", "entropy", "grad_norm", "completion_tokens", "ratio", "learning_rate")
SHOWN = 6
"""Charts that are there without asking."""
MOST_CHARTS = 60
PIPELINE = ("staleness", *IDLE.values(), "maker.tokens_per_second", "samples", "makers")
_UNITS = {
    "staleness": "versions behind", "samples": "samples a step", "makers": "makers", "entropy": "nats a token",
    "grad_norm": "norm", "ratio": "probability ratio", "completion_tokens": "tokens", "kl_to_reference": "nats",
    "learning_rate": "learning rate", "clipped_low": "share of tokens", "clipped_high": "share of tokens",
}  # fmt: skip


def learning_curves(subject: Subject) -> Section | None:
    """All that training measured but what tells of the pipeline."""
    names = [name for name in _names(subject.arms, "training") if not _is_of_pipeline(name)]
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    return _section(subject, "learning", "Learning curves", names, "training")


def evals_over_steps(subject: Subject) -> Section | None:
    """The scores of evals while the run went on."""
    section = _section(subject, "evals", "Evals over steps", _names(subject.arms, "evals"), "evals")
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


def charts_of(arms: Sequence[Arm], names: Iterable[str], kind: Kind) -> list[tuple[str, Chart]]:
    """A chart for every name that some arm has a value of; with the name that the page's script knows it by."""
    charts = []
    for name in names:
        lines = [
            Line(arm.name, place, curve)
            for place, arm in enumerate(arms)
            if (curve := curve_of(_series(arm, name, kind))) is not None
        ]
        if lines:
            charts.append((f"{kind}/{name}", line_chart(f"{kind}/{name}", _title(name, lines, len(arms)), lines, unit_of(name), _note(lines))))
    return charts


def unit_of(name: str) -> str:
    """What stands at the vertical axis."""
    if name in _UNITS:
        return _UNITS[name]
    endings = {"_seconds": "seconds a step", "share": "share of its time", "tokens_per_second": "tokens/s", ".completion_tokens": "tokens"}
    return next((unit for ending, unit in endings.items() if name.endswith(ending)), name.rpartition(".")[2])


def _section(
    subject: Subject, place: str, title: str, names: Sequence[str], kind: Kind, shown: int = SHOWN
) -> Section | None:
    charts = charts_of(subject.arms, names[:MOST_CHARTS], kind)
    if not charts:
        return None
    first, more = charts[:shown], charts[shown:]
    body: list[Markup | None] = [arm_legend(subject.arms), _grid(first)]
    if more:
        body.append(folded(f"{len(more)} more: {', '.join(name.partition('/')[2] for name, _ in more[:6])}{' …' if len(more) > 6 else ''}", _grid(more)))
    if len(names) > MOST_CHARTS:
        body.append(tag("p", f"{count(len(names) - MOST_CHARTS, 'more metric')} in metrics.jsonl are not drawn.", class_="note"))
    return Section(place, title, [part for part in body if part is not None], {name: chart.data for name, chart in charts})


def _grid(charts: Sequence[tuple[str, Chart]]) -> Markup:
    return tag("div", [chart.figure for _, chart in charts], class_="charts")


def _names(arms: Sequence[Arm], kind: Kind) -> list[str]:
    found: dict[str, None] = {}
    for arm in arms:
        for run in arm.runs:
            found |= dict.fromkeys(run.metrics.training if kind == "training" else run.metrics.evals)
    return list(found)


def _series(arm: Arm, name: str, kind: Kind) -> list[Series]:
    of_runs = (run.metrics.training if kind == "training" else run.metrics.evals for run in arm.runs)
    return [series[name] for series in of_runs if name in series]


def _is_of_pipeline(name: str) -> bool:
    return name in PIPELINE or name.startswith(("trainer.", "maker."))


def _title(name: str, lines: Sequence[Line], arms: int) -> str:
    """What is seen."""
    if arms > 1:
        return f"{name}, {count(len(lines), 'arm')}"
    values = [value for value in lines[0].curve.values if value == value]
    if len(values) < 2:
        return name
    return f"{name}: {number(values[0])} to {number(values[-1])}" if values[0] != values[-1] else f"{name}: {number(values[0])}"


def _note(lines: Sequence[Line]) -> str:
    """What a line and a band are."""
    repeated = [line.curve for line in lines if line.curve.runs > 1]
    if repeated:
        return _band_words(repeated)
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
    return f"Line: mean of {repeats} repeats; band: 95 % t-interval{points}."


def _breakdowns(subject: Subject) -> list[Markup]:
    """The last scores of each eval by what its rows are tagged with."""
    rows: list[tuple[Any, ...]] = []
    for run in subject.told:
        last = {result.name: result for result in run.evals}
        for result in last.values():
            for key, values in result.breakdowns.items():
                rows += [
                    (run.arm, result.name, f"{key}: {value}", number(scores.get("n")), number(scores.get("mean_reward")), number(scores.get("pass_rate")))
                    for value, scores in values.items()
                ]  # fmt: skip
    if not rows:
        return []
    head = ("arm", "eval", "part", "n", "mean reward", "pass rate")
    if len(subject.arms) < 2:
        head, rows = head[1:], [row[1:] for row in rows]
    return [folded(f"By part: {count(len(rows), 'row')}", table(head, rows[:500], numbers=range(len(head) - 3, len(head))))]
