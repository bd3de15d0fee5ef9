"""Arms beside each other: the score of every repeat, their mean and its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..statistics.intervals import Estimate
from .chart import RIGHT, WIDTH, class_of, labelled
from .html import Markup, tag
from .scale import Scale, range_of, ticks
from .text import number, squeezed

ROW = 44
TOP = 8
LINE = 15
MOST_OF_A_LINE = 52
"""Characters of a name that fit into the width of the drawing."""
MOST_LINES = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One arm: what its repeats scored, and what that amounts to."""

    name: str
    place: int
    scores: Sequence[float]
    estimate: Estimate


def interval_chart(title: str, rows: Sequence[Row], unit: str, note: str) -> Markup:
    """A row for every arm; one without a score says so."""
    along = Scale(*_width(rows), 14, RIGHT)
    lines = max((len(_lines_of(row.name)) for row in rows), default=1)
    height = ROW + LINE * lines
    bottom = TOP + height * len(rows)
    drawing = tag(
        "svg",
        [_tick(along, tick, said, bottom) for tick, said in labelled(ticks(along.low, along.high))],
        tag("text", unit, class_="unit", x=RIGHT, y=bottom + 33, text_anchor="end"),
        [_row(row, along, TOP + height * place, lines) for place, row in enumerate(rows)],
        viewBox=f"0 0 {WIDTH} {bottom + 40}",
        role="img",
        aria_label=f"{title}. {note}",
    )  # fmt: skip
    edges = [edge for row in rows for edge in (row.estimate.low, row.estimate.high) if edge is not None]
    if any(not along.low <= edge <= along.high for edge in edges):
        note += " An interval without an end mark reaches beyond the drawing."
    caption = tag("figcaption", tag("h3", title), tag("p", note, class_="note"))
    return tag("figure", caption, drawing, class_="chart intervals")


def _width(rows: Sequence[Row]) -> tuple[float, float]:
    """The range of the scores, and of the intervals as far as these do not flatten them."""
    low, high = range_of([score for row in rows for score in row.scores])
    room = 1.5 * (high - low)
    edges = [edge for row in rows for edge in (row.estimate.low, row.estimate.high) if edge is not None]
    return range_of([max(low - room, min([low, *edges])), min(high + room, max([high, *edges]))])


def _tick(along: Scale, tick: float, said: str, bottom: float) -> Markup:
    x = f"{along.at(tick):.1f}"
    line = tag("line", class_="grid", x1=x, x2=x, y1=TOP, y2=bottom)
    return tag("g", line, tag("text", said, x=x, y=bottom + 16, text_anchor="middle"))


def _row(row: Row, along: Scale, top: float, lines: int) -> Markup:
    """The name, which may be as wide as the drawing and wider; below it the value, and below that the marks."""
    said = row.estimate
    below = top + LINE * lines
    middle = below + 30
    parts = []
    if said.mean is None:
        words = "no score"
    elif said.low is None or said.high is None:
        words = f"{number(said.mean)}, {'one run' if said.n == 1 else f'each of {said.n} runs'}: no interval"
    else:
        words = f"{number(said.mean)} ({number(said.low)} to {number(said.high)})"
        ends = [f"{along.at(edge):.1f}" for edge in (said.low, said.high)]
        parts.append(tag("line", class_="interval", x1=ends[0], x2=ends[1], y1=middle, y2=middle))
        inside = [x for x, edge in zip(ends, (said.low, said.high), strict=True) if along.low <= edge <= along.high]
        parts += [tag("line", class_="interval", x1=x, x2=x, y1=middle - 4, y2=middle + 4) for x in inside]
    parts += [tag("circle", class_="repeat", cx=f"{along.at(score):.1f}", cy=middle, r=3) for score in row.scores]
    if said.mean is not None:
        x = along.at(said.mean)
        parts.append(tag("path", class_="mean", d=f"M{x:.1f},{middle - 6}l5,6l-5,6l-5,-6Z"))
    name = [
        tag("text", line, tag("title", row.name), class_="name", x=14, y=top + 13 + LINE * place)
        for place, line in enumerate(_lines_of(row.name))
    ]
    value = tag("text", words, x=14, y=below + 14)
    return tag("g", name, value, parts, class_=class_of(row.place))


def _lines_of(name: str) -> list[str]:
    """
    >>> _lines_of("optimizer.learning_rate-0.0003__sampling.group_size-8__max_staleness-1")
    ['optimizer.learning_rate-0.0003__sampling.group_size-', '8__max_staleness-1']
    """
    shown = squeezed(name, MOST_OF_A_LINE * MOST_LINES)
    return [shown[at : at + MOST_OF_A_LINE] for at in range(0, len(shown), MOST_OF_A_LINE)] or [""]
