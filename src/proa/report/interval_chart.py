"""Arms beside each other: the score of every repeat, their mean and its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..statistics.intervals import Estimate
from .chart import RIGHT, WIDTH, class_of
from .html import Markup, tag
from .scale import Scale, range_of, ticks
from .text import ended, number, short

ROW = 44
TOP = 8


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
    bottom = TOP + ROW * len(rows)
    drawing = tag(
        "svg",
        [_tick(along, tick, bottom) for tick in ticks(along.low, along.high)],
        tag("text", unit, class_="unit", x=RIGHT, y=bottom + 33, text_anchor="end"),
        [_row(row, along, TOP + ROW * place) for place, row in enumerate(rows)],
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


def _tick(along: Scale, tick: float, bottom: float) -> Markup:
    x = f"{along.at(tick):.1f}"
    line = tag("line", class_="grid", x1=x, x2=x, y1=TOP, y2=bottom)
    return tag("g", line, tag("text", short(tick), x=x, y=bottom + 16, text_anchor="middle"))


def _row(row: Row, along: Scale, top: float) -> Markup:
    said = row.estimate
    middle = top + 30
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
    name = tag("text", ended(row.name, 30), tag("title", row.name), class_="name", x=14, y=top + 16)
    value = tag("text", words, x=RIGHT, y=top + 16, text_anchor="end")
    return tag("g", name, value, parts, class_=class_of(row.place))
