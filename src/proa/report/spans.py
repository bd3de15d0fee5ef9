"""Who did what when: `spans.jsonl` as lanes that do not overlap, as shares of time, and as columns of a picture."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .lines import objects_in
from .metrics import number_in

KINDS = ("compute", "generate", "score", "publish", "load", "send", "eval", "save", "meet", "wait")
"""In the order of the legend; what is idle comes last."""
LEAST_PAUSE = 30.0
"""Seconds without a span of anybody after which a run was not running: every wait of one that runs is a span. Of a
short run, fewer: as many as it ran for."""


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that an actor did; `start` in seconds since the first span of the run."""

    kind: str
    start: float
    end: float
    step: int | None = None
    lease: int | None = None
    version: int | None = None


@dataclass(slots=True)
class Lane:
    """All that one actor did, in order and without overlap: while two things went on, the one that began later."""

    actor: str
    spans: list[Span] = field(default_factory=list)

    def seconds(self) -> dict[str, float]:
        """By kind."""
        spent: dict[str, float] = {}
        for span in self.spans:
            spent[span.kind] = spent.get(span.kind, 0.0) + span.end - span.start
        return spent


@dataclass(frozen=True, slots=True)
class Pause:
    """A stretch in which nobody did anything: the run was not running. It is left out of the times after it."""

    at: float
    seconds: float


@dataclass(slots=True)
class Timeline:
    """The lanes of a run, the trainers' first."""

    lanes: list[Lane]
    seconds: float
    spans: int
    pauses: list[Pause] = field(default_factory=list)


def read_timeline(path: Path) -> Timeline | None:
    """None if the run wrote no spans."""
    by_actor: dict[str, list[Span]] = {}
    for row in objects_in(path):
        span = _span(row)
        if span is not None:
            by_actor.setdefault(str(row.get("actor")), []).append(span)
    if not by_actor:
        return None
    begin = min(span.start for spans in by_actor.values() for span in spans)
    pauses = find_pauses([span for spans in by_actor.values() for span in spans], begin)
    by_actor = {actor: _without_pauses(spans, pauses, begin) for actor, spans in by_actor.items()}
    lanes = [
        Lane(actor, without_overlap(spans, begin)) for actor, spans in sorted(by_actor.items(), key=_trainers_first)
    ]
    end = max((span.end for lane in lanes for span in lane.spans), default=0.0)
    return Timeline(lanes, end, sum(map(len, by_actor.values())), pauses)


def find_pauses(spans: Sequence[Span], begin: float = 0.0) -> list[Pause]:
    """Where a run stood still for longer than `LEAST_PAUSE`, as one does that is resumed the next day.

    >>> find_pauses([Span("compute", 0.0, 4.0), Span("compute", 10.0, 11.0), Span("wait", 1.0, 3.0)])
    [Pause(at=4.0, seconds=6.0)]
    """
    gaps: list[tuple[float, float]] = []
    until = begin
    for span in sorted(spans, key=lambda span: span.start):
        if span.start > until:
            gaps.append((until, span.start - until))
        until = max(until, span.end)
    ran = until - begin - sum(seconds for _, seconds in gaps)
    pauses: list[Pause] = []
    left_out = 0.0
    for start, seconds in gaps:
        if seconds > min(LEAST_PAUSE, max(1.0, ran)):
            pauses.append(Pause(start - begin - left_out, seconds))
            left_out += seconds
    return pauses


def _without_pauses(spans: list[Span], pauses: Sequence[Pause], begin: float) -> list[Span]:
    moved = []
    for span in spans:
        earlier = 0.0
        for pause in pauses:
            if span.start - begin - earlier <= pause.at:
                break
            earlier += pause.seconds
        moved.append(replace(span, start=span.start - earlier, end=span.end - earlier))
    return moved


def without_overlap(spans: Iterable[Span], begin: float = 0.0) -> list[Span]:
    """Pieces that follow each other, from spans that may lie within each other.

    >>> pieces = without_overlap([Span("compute", 0.0, 4.0), Span("wait", 1.0, 2.0)])
    >>> [(piece.kind, piece.start, piece.end) for piece in pieces]
    [('compute', 0.0, 1.0), ('wait', 1.0, 2.0), ('compute', 2.0, 4.0)]
    """
    todo = sorted(spans, key=lambda span: span.start)
    pieces: list[Span] = []
    active: list[tuple[float, int, Span]] = []  # the one that began last is on top
    now = -math.inf
    for place in range(len(todo) + 1):
        until = todo[place].start if place < len(todo) else math.inf
        while active and now < until:
            top = active[0][2]
            if top.end <= now:
                heapq.heappop(active)
                continue
            end = min(top.end, until)
            pieces.append(Span(top.kind, now - begin, end - begin, top.step, top.lease, top.version))
            now = end
        if place < len(todo):
            now = until
            heapq.heappush(active, (-until, -place, todo[place]))
    return pieces


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring columns of a picture in which the same kind took most of the time."""

    kind: str
    first: int
    last: int


def blocks(lane: Lane, seconds: float, columns: int) -> list[Block]:
    """A lane in so many columns of equal time, each with what took most of it; empty where nothing was recorded."""
    width = seconds / columns if seconds > 0 else 1.0
    spent: list[dict[str, float]] = [{} for _ in range(columns)]
    for span in lane.spans:
        first, last = (min(columns - 1, int(at / width)) for at in (span.start, span.end))
        for column in range(first, last + 1):
            inside = min(span.end, (column + 1) * width) - max(span.start, column * width)
            spent[column][span.kind] = spent[column].get(span.kind, 0.0) + inside
    found: list[Block] = []
    for column, kinds in enumerate(spent):
        kind = max(kinds, key=lambda kind: kinds[kind], default="")
        if not kind or kinds[kind] <= 0:
            continue
        if found and found[-1].kind == kind and found[-1].last == column - 1:
            found[-1] = Block(kind, found[-1].first, column)
        else:
            found.append(Block(kind, column, column))
    return found


def busiest_window(timeline: Timeline, most: int = 400) -> tuple[float, float]:
    """A stretch of time with at most about so many pieces in it, where the most begin."""
    starts = sorted(span.start for lane in timeline.lanes for span in lane.spans)
    if len(starts) <= most:
        return 0.0, timeline.seconds
    length = timeline.seconds * most / len(starts)
    ends = [bisect_right(starts, start + length) for start in starts]
    first = max(range(len(starts)), key=lambda place: (ends[place] - place, -place))
    low = max(0.0, min(starts[first], timeline.seconds - length))
    return low, low + length


def kinds_in(lanes: Sequence[Lane]) -> list[str]:
    """Those that occur, known ones first."""
    there = {span.kind for lane in lanes for span in lane.spans}
    return [kind for kind in KINDS if kind in there] + sorted(there - set(KINDS))


def _span(row: dict[str, Any]) -> Span | None:
    start, seconds = number_in(row.get("start")), number_in(row.get("seconds"))
    if start is None or seconds is None or not math.isfinite(start + seconds) or seconds < 0:
        return None
    numbers = (row.get(key) for key in ("step", "lease", "version"))
    step, lease, version = (value if isinstance(value, int) else None for value in numbers)
    return Span(str(row.get("kind")), start, start + seconds, step, lease, version)


def _trainers_first(item: tuple[str, list[Span]]) -> tuple[bool, int, str]:
    return "trainer" not in item[0], len(item[0]), item[0]
