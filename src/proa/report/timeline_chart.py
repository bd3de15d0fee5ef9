"""The pipeline as a drawing: a lane for every actor, coloured by what it did; and what each spent its time on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .chart import labelled
from .html import Markup, join, tag
from .scale import Scale, ticks
from .spans import KINDS, Lane, Pause, Span, Timeline, blocks, busiest_window
from .text import duration, number, squeezed

WIDTH = 1000
LEFT, RIGHT = 120, 980
LANE = 24
COLUMNS = 440


def kind_class(kind: str) -> str:
    """The class that gives a kind of work its colour."""
    return f"k-{kind}" if kind in KINDS else "k-other"


def legend(kinds: Sequence[str]) -> Markup:
    return tag(
        "p",
        [tag("span", tag("span", class_=f"swatch {kind_class(kind)}"), kind, class_="key") for kind in kinds],
        class_="legend",
    )


def whole_run(timeline: Timeline) -> Markup:
    """What took most of every moment of the run."""
    along = Scale(0.0, timeline.seconds or 1.0, LEFT, RIGHT)
    column = (along.end - along.begin) / COLUMNS
    each = timeline.seconds / COLUMNS
    lanes = []
    for place, lane in enumerate(timeline.lanes):
        rects = [
            _rect(
                block.kind,
                along.begin + block.first * column,
                (block.last - block.first + 1) * column,
                place,
                f"{lane.actor}: {block.kind}, {number(block.first * each)} to {number((block.last + 1) * each)} s",
            )
            for block in blocks(lane, timeline.seconds, COLUMNS)
        ]
        lanes.append(join([_name(lane.actor, place), rects]))
    long = duration(each) if each >= 0.1 else f"{1000 * each:.2g} ms"
    note = f"Each column is {long} and has the colour of what took most of it. Empty: nothing was recorded."
    return _figure("The whole run", f"{note}{_pause_words(timeline.pauses)}", lanes, along, pauses=timeline.pauses)


def _pause_words(pauses: Sequence[Pause]) -> str:
    if not pauses:
        return ""
    long = ", ".join(duration(pause.seconds) for pause in pauses[:5]) + (", …" if len(pauses) > 5 else "")
    return f" Left out, at the dashed lines, is when the run was not running: {long}."


def close_up(timeline: Timeline) -> Markup | None:
    """The stretch in which most happened, piece by piece; None where the whole run is as short."""
    begin, end = busiest_window(timeline)
    if end - begin >= timeline.seconds:
        return None
    along = Scale(begin, end, LEFT, RIGHT)
    lanes = [join([_name(lane.actor, place), _pieces(lane, along, place)]) for place, lane in enumerate(timeline.lanes)]
    note = f"The {duration(end - begin)} in which most happened, every piece as it was."
    return _figure("A closer look", note, lanes, along)


def shares(spent: Mapping[str, Mapping[str, float]], kinds: Sequence[str]) -> Markup:
    """How each actor spent its time, as bars of equal length."""
    along = Scale(0.0, 100.0, LEFT, RIGHT)
    lanes = []
    for place, (actor, seconds) in enumerate(spent.items()):
        total, at = sum(seconds.values()) or 1.0, along.begin
        rects = []
        for kind in kinds:
            width = (along.end - along.begin) * seconds.get(kind, 0.0) / total
            said = f"{actor}: {kind}, {100 * seconds.get(kind, 0.0) / total:.1f} %, {duration(seconds.get(kind, 0.0))}"
            rects.append(_rect(kind, at, width, place, said) if width else join([]))
            at += width
        lanes.append(join([_name(actor, place), rects]))
    note = "Of the time for which something was recorded."
    return _figure("Where the time went", note, lanes, along, unit="% of the time")


def _pieces(lane: Lane, along: Scale, place: int) -> list[Markup]:
    rects = []
    for span in lane.spans:
        if span.end < along.low or span.start > along.high:
            continue
        begin, end = along.at(span.start), along.at(span.end)
        rects.append(_rect(span.kind, begin, end - begin, place, f"{lane.actor}: {_said(span)}"))
    return rects


def _said(span: Span) -> str:
    words = [f"{span.kind} {duration(span.end - span.start)}"]
    for name in ("step", "lease", "version"):
        value = getattr(span, name)
        if value is not None:
            words.append(f"{name} {value}")
    return ", ".join(words)


def _figure(
    title: str,
    note: str,
    lanes: Sequence[Markup],
    along: Scale,
    unit: str = "seconds since the first span",
    pauses: Sequence[Pause] = (),
) -> Markup:
    bottom = 6 + LANE * len(lanes)
    cuts = [
        tag("line", class_="pause", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=2, y2=bottom)
        for x in (along.at(pause.at) for pause in pauses[:200])
    ]
    marks = [
        tag("text", said, x=f"{along.at(tick):.1f}", y=bottom + 16, text_anchor="middle")
        for tick, said in labelled(ticks(along.low, along.high, 10))
    ]
    drawing = tag(
        "svg",
        lanes,
        cuts,
        marks,
        tag("text", unit, class_="unit", x=RIGHT, y=bottom + 33, text_anchor="end"),
        viewBox=f"0 0 {WIDTH} {bottom + 40}",
        role="img",
        aria_label=f"{title}. {note}",
    )  # fmt: skip
    caption = tag("figcaption", tag("h3", title), tag("p", note, class_="note"))
    return tag("figure", caption, tag("div", drawing, class_="scroll", tabindex="0"), class_="wide")


def _name(actor: str, place: int) -> Markup:
    return tag("text", squeezed(actor, 16), tag("title", actor), x=LEFT - 8, y=6 + LANE * place + 15, text_anchor="end")


def _rect(kind: str, x: float, width: float, place: int, said: str) -> Markup:
    return tag(
        "rect",
        tag("title", said),
        class_=kind_class(kind),
        x=f"{x:.1f}",
        y=6 + LANE * place,
        width=f"{max(width, 0.4):.1f}",
        height=LANE - 5,
    )
