"""The norms of gradients by layer, as `gradient_norms` logs them: one drawing of all layers over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .chart import class_of, labelled
from .curves import Series
from .html import Markup, tag
from .reading import Arm, RunData, Subject
from .scale import Scale, whole_ticks
from .section import Section, folded, table
from .text import number, squeezed

PREFIX = "grad_norm."
COLUMNS = 60
MOST_LAYERS = 128
WIDTH, LEFT, RIGHT, ROW = 1000, 160, 980, 14


def is_layer_norm(metric: str) -> bool:
    """Whether a metric is the norm of one layer."""
    return metric.startswith(PREFIX)


def gradient_norms(subject: Subject) -> Section | None:
    """For the first run of each arm that has them: which layers learned, and when."""
    found = [(arm, run, norms) for arm in subject.arms for run in arm.runs[:1] if (norms := _norms(run))]
    if not found:
        return None
    body: list[Markup] = []
    for place, (arm, run, norms) in enumerate(found):
        parts = [_drawing(norms, _name(arm, run, len(subject.arms))), _table(norms)]
        body += parts if not place else [folded(_name(arm, run, len(subject.arms)), *parts)]
    return Section("gradients", "Gradient norms", body)


def _norms(run: RunData) -> dict[str, Series]:
    layers = {name.removeprefix(PREFIX): series for name, series in run.metrics.training.items() if is_layer_norm(name)}
    return dict(list(layers.items())[:MOST_LAYERS])


def _name(arm: Arm, run: RunData, arms: int) -> str:
    return f"Norms by layer: {run.key}" if arms > 1 or len(arm.runs) > 1 else "Norms by layer"


def _drawing(norms: Mapping[str, Series], title: str) -> Markup:
    """A row for each layer; the darker, the longer its gradient, on a logarithmic scale."""
    steps = sorted({step for series in norms.values() for step in series.steps})
    groups = [steps[at * len(steps) // COLUMNS : (at + 1) * len(steps) // COLUMNS] for at in range(COLUMNS)]
    columns = [group for group in groups if group]
    cells = {layer: _means(series, columns) for layer, series in norms.items()}
    logs = [math.log10(value) for row in cells.values() for value in row if value is not None and value > 0]
    if not logs:
        return tag("p", "All norms are 0, or not finite.", class_="note")
    shade = Scale(min(logs), max(max(logs), min(logs) + 1e-9), 0.08, 1.0)
    width = (RIGHT - LEFT) / len(columns)
    bottom = 6 + ROW * len(norms)
    rows = [_row(layer, row, at, width, shade) for at, (layer, row) in enumerate(cells.items())]
    low, high = number(10**shade.low), number(10**shade.high)
    note = f"From {low} (pale) to {high} (dark), logarithmic, before clipping; a gap: 0, or not finite."
    drawing = tag(
        "svg",
        rows,
        _marks(columns, width, bottom),
        tag("text", "steps done", class_="unit", x=RIGHT, y=bottom + 33, text_anchor="end"),
        viewBox=f"0 0 {WIDTH} {bottom + 40}",
        role="img",
        aria_label=f"{title}. {note}",
    )
    caption = tag("figcaption", tag("h3", title), tag("p", note, class_="note"))
    return tag("figure", caption, tag("div", drawing, class_="scroll", tabindex="0"), class_="wide")


def _row(layer: str, values: Sequence[float | None], at: int, width: float, shade: Scale) -> Markup:
    y = 6 + ROW * at
    cells = [
        tag("rect", x=f"{LEFT + column * width:.1f}", y=y, width=f"{width:.1f}", height=ROW - 2,
            fill_opacity=f"{shade.at(math.log10(value)):.2f}")
        for column, value in enumerate(values)
        if value is not None and value > 0
    ]  # fmt: skip
    name = tag("text", squeezed(layer, 22), tag("title", layer), x=LEFT - 8, y=y + ROW - 3, text_anchor="end")
    return tag("g", name, cells, class_=class_of(0))


def _marks(columns: Sequence[Sequence[int]], width: float, bottom: int) -> list[Markup]:
    """Steps below the columns that they are in."""
    marks = []
    for tick, said in labelled(whole_ticks(columns[0][0], columns[-1][-1], 10)):
        column = next((at for at, steps in enumerate(columns) if steps[-1] >= tick), len(columns) - 1)
        marks.append(tag("text", said, x=f"{LEFT + (column + 0.5) * width:.1f}", y=bottom + 16, text_anchor="middle"))
    return marks


def _means(series: Series, columns: Sequence[Sequence[int]]) -> list[float | None]:
    """The mean of a layer's norms in each column; None where one is not finite, or there is none."""
    at = dict(zip(series.steps, series.values, strict=True))
    means: list[float | None] = []
    for steps in columns:
        values = [at[step] for step in steps if step in at]
        mean = sum(values) / len(values) if values else math.nan
        means.append(mean if math.isfinite(mean) else None)
    return means


def _table(norms: Mapping[str, Series]) -> Markup:
    rows = [
        (layer, number(series.values[0]), number(series.last), number(min(series.values)), number(max(series.values)))
        for layer, series in norms.items()
    ]
    return folded("As numbers", table(["layer", "first", "last", "least", "greatest"], rows, numbers=range(1, 5)))
