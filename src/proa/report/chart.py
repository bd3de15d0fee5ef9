"""One metric over the steps as a drawing: a line for each arm, its band, gaps where there was no number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .curves import Curve
from .html import Markup, join, tag
from .scale import Scale, range_of, ticks, whole_ticks
from .text import count, number, shorts

WIDTH, HEIGHT = 420, 236
LEFT, RIGHT, TOP, BOTTOM = 50, 410, 24, 196
FEW = 30
"""A curve with at most so many points has them marked."""
COLOURS = 8
"""Classes of colours that the page's style has; the strokes differ where arms share one."""


@dataclass(frozen=True, slots=True)
class Line:
    """What one arm, or one of the things that are compared, has in a chart."""

    name: str
    place: int
    """Its number among all arms of the page: the same colour everywhere."""
    curve: Curve


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure for the page, and what its script needs to tell the values under the pointer."""

    figure: Markup
    data: dict[str, Any]


def line_chart(name: str, title: str, lines: Sequence[Line], unit: str, note: str = "") -> Chart:
    """`name` is unique on the page. `unit` stands at the vertical axis."""
    steps = [step for line in lines for step in (line.curve.steps[0], line.curve.steps[-1])]
    across = Scale(*range_of(steps, margin=0.0), LEFT, RIGHT)
    up = Scale(*_heights(lines), BOTTOM, TOP)
    drawing = tag(
        "svg",
        _axes(across, up, unit),
        [_band(line, across, up) for line in lines],
        [_each(line, across, up) for line in lines],
        [_line(line, across, up) for line in lines],
        tag("line", class_="cursor", x1=0, x2=0, y1=TOP, y2=BOTTOM, visibility="hidden"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}. {note}",
    )  # fmt: skip
    edges = [edge for line in lines for edge in (*line.curve.low, *line.curve.high) if edge is not None]
    beyond = "Bands reach beyond the drawing." if any(not up.low <= edge <= up.high for edge in edges) else ""
    remarks = [note, beyond, *_remarks(lines)]
    figure = tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("p", " ".join(filter(None, remarks)), class_="note")),
        drawing,
        tag("output", class_="readout"),
        class_="chart", data_chart=name, tabindex="0",
    )  # fmt: skip
    return Chart(figure, _data(lines, across))


def class_of(place: int) -> str:
    """The class that gives an arm its colour, and the strokes that tell it from others of that colour.

    >>> class_of(1), class_of(9)
    ('s1 d0 arm1', 's1 d1 arm9')
    """
    return f"s{place % COLOURS} d{place // COLOURS % 4} arm{place}"


def _heights(lines: Sequence[Line]) -> tuple[float, float]:
    """The range of the lines, and of their bands as far as these do not flatten the lines."""
    each = [value for line in lines for _, values in line.curve.each for value in values]
    low, high = range_of([value for line in lines for value in line.curve.values] + each)
    room = high - low
    edges = [edge for line in lines for edge in (*line.curve.low, *line.curve.high) if edge is not None]
    return max(low - room, min([low, *edges])), min(high + room, max([high, *edges]))


def _axes(across: Scale, up: Scale, unit: str) -> Markup:
    parts = []
    for tick, said in labelled(ticks(up.low, up.high)):
        y = f"{up.at(tick):.1f}"
        parts.append(tag("line", class_="grid", x1=LEFT, x2=RIGHT, y1=y, y2=y))
        parts.append(_fitting(said, x=LEFT - 6, y=y, dy="0.32em"))
    parts += [
        tag("text", said, x=f"{across.at(tick):.1f}", y=BOTTOM + 16, text_anchor="middle")
        for tick, said in labelled(whole_ticks(across.low, across.high))
    ]
    parts.append(tag("line", class_="axis", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM))
    parts.append(tag("text", "steps done", class_="unit", x=RIGHT, y=BOTTOM + 33, text_anchor="end"))
    parts.append(tag("text", unit, class_="unit", x=4, y=10))
    return tag("g", parts)


def labelled(marks: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks with what stands at each."""
    return list(zip(marks, shorts(marks), strict=True))


def _fitting(said: str, **place: object) -> Markup:
    """A label left of the axis, pressed together if it needs more room than there is."""
    room = LEFT - 8
    is_long = len(said) * 6.7 > room
    pressed = {"textLength": room, "lengthAdjust": "spacingAndGlyphs"} if is_long else {}
    return tag("text", said, text_anchor="end", **pressed, **place)


def _line(line: Line, across: Scale, up: Scale) -> Markup:
    curve = line.curve
    pieces = _pieces(curve.steps, curve.values)
    path = "".join("M" + "L".join(_point(across.at(step), up.at(value)) for step, value in piece) for piece in pieces)
    lonely = curve.steps if len(curve.steps) <= FEW else [piece[0][0] for piece in pieces if len(piece) == 1][:500]
    at = dict(zip(curve.steps, curve.values, strict=True))
    dots = [
        tag("circle", cx=f"{across.at(step):.1f}", cy=f"{up.at(at[step]):.1f}", r=2.2)
        for step in lonely
        if math.isfinite(at[step])
    ]
    gaps = [step for step, value in zip(curve.steps, curve.values, strict=True) if not math.isfinite(value)][:200]
    crosses = [tag("text", "×", class_="gap", x=f"{across.at(step):.1f}", y=BOTTOM - 3) for step in gaps]
    return tag("g", tag("path", class_="line", d=path), dots, crosses, class_=class_of(line.place))


def _each(line: Line, across: Scale, up: Scale) -> Markup:
    """The repeats behind a mean, where they are few."""
    paths = [
        "".join("M" + "L".join(_point(across.at(x), up.at(y)) for x, y in piece) for piece in _pieces(steps, values))
        for steps, values in line.curve.each
    ]
    return tag("g", [tag("path", class_="repeat", d=path) for path in paths], class_=class_of(line.place))


def _band(line: Line, across: Scale, up: Scale) -> Markup:
    edges = [
        (across.at(step), up.at(low), up.at(high))
        for step, low, high in zip(line.curve.steps, line.curve.low, line.curve.high, strict=False)
        if low is not None and high is not None
    ]
    if len(edges) < 2:
        return join([])
    upper = "L".join(_point(x, high) for x, _, high in edges)
    lower = "L".join(_point(x, low) for x, low, _ in reversed(edges))
    return tag("path", class_=f"band {class_of(line.place)}", d=f"M{upper}L{lower}Z")


def _pieces(steps: Sequence[int], values: Sequence[float]) -> list[list[tuple[int, float]]]:
    """The stretches between gaps."""
    pieces: list[list[tuple[int, float]]] = [[]]
    for step, value in zip(steps, values, strict=True):
        if math.isfinite(value):
            pieces[-1].append((step, value))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _point(x: float, y: float) -> str:
    return f"{x:.1f},{y:.1f}"


def _remarks(lines: Sequence[Line]) -> list[str]:
    """What is not drawn as it was."""
    remarks = []
    for line in lines:
        if line.curve.not_finite:
            who = f"{line.name}: " if len(lines) > 1 else ""
            where = f"the first at step {number(line.curve.first_not_finite)}"
            remarks.append(f"{who}{count(line.curve.not_finite, 'value')} not finite (×), {where}.")
    return remarks


def _data(lines: Sequence[Line], across: Scale) -> dict[str, Any]:
    return {
        "x": [across.low, across.high],
        "lines": [
            {
                "name": line.name,
                "arm": line.place,
                "steps": line.curve.steps,
                "values": line.curve.values,
                **({"low": line.curve.low, "high": line.curve.high} if line.curve.low else {}),
                **({"n": line.curve.repeats} if line.curve.repeats else {}),
            }
            for line in lines
        ],
    }
