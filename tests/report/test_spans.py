"""Spans as lanes, shares and columns."""

import itertools
import json
import random

import pytest
from tests.report.report_records import write_lines

from proa.report.spans import Lane, Pause, Span, Timeline, blocks, busiest_window, read_timeline, without_overlap


def at(pieces, moment):
    return next((piece.kind for piece in pieces if piece.start <= moment < piece.end), None)


def test_spans_within_each_other_share_the_time_and_none_is_counted_twice():
    chance = random.Random(3)
    spans = []
    for name in "abcdefgh":
        start = chance.random() * 10
        spans.append(Span(name, start, start + chance.random() * 5))
    pieces = without_overlap(spans)
    for one, other in itertools.pairwise(pieces):
        assert one.end <= other.start
    for step in range(1500):
        moment = step / 100
        there = [span for span in spans if span.start <= moment < span.end]
        expected = max(there, key=lambda span: span.start).kind if there else None
        assert at(pieces, moment) == expected


def test_spans_of_no_length_and_equal_starts_do_no_harm():
    pieces = without_overlap([Span("a", 0, 1), Span("b", 0, 0), Span("c", 1, 1), Span("d", 1, 2)])
    assert [(piece.kind, piece.start, piece.end) for piece in pieces] == [("a", 0, 1), ("d", 1, 2)]


def test_a_column_has_the_kind_that_took_most_of_it():
    lane = Lane("maker_0", [Span("generate", 0.0, 1.8), Span("wait", 1.8, 3.0), Span("score", 9.0, 10.0)])
    assert [(block.kind, block.first, block.last) for block in blocks(lane, 10.0, 10)] == [
        ("generate", 0, 1), ("wait", 2, 2), ("score", 9, 9),
    ]  # fmt: skip


def test_trainers_come_first_and_what_is_no_span_is_passed_over(tmp_path):
    rows = [
        {"actor": "maker_10", "kind": "generate", "start": 105.0, "seconds": 2.0},
        {"actor": "maker_2", "kind": "generate", "start": 104.0, "seconds": 2.0},
        {"actor": "trainer_0", "kind": "compute", "start": 103.0, "seconds": 1.0, "step": 4},
        {"actor": "trainer_0", "kind": "compute", "start": "NaN", "seconds": 1.0},
        {"actor": "trainer_0", "kind": "compute", "start": 100.0, "seconds": -1.0},
        {"actor": "trainer_0"},
    ]
    write_lines(tmp_path / "spans.jsonl", rows)
    timeline = read_timeline(tmp_path / "spans.jsonl")
    assert [lane.actor for lane in timeline.lanes] == ["trainer_0", "maker_2", "maker_10"]
    assert timeline.lanes[0].spans == [Span("compute", 0.0, 1.0, 4)]
    assert timeline.seconds == pytest.approx(4.0)
    assert timeline.spans == 3


def test_a_run_without_spans_has_no_timeline(tmp_path):
    assert read_timeline(tmp_path / "spans.jsonl") is None


def test_the_time_in_which_a_run_was_not_running_is_left_out(tmp_path):
    rows = [("trainer_0", 100.0, 4.0), ("maker_0", 101.0, 2.0), ("trainer_0", 7300.0, 1.0), ("maker_0", 7305.0, 1.0)]
    lines = [json.dumps({"actor": actor, "kind": "compute", "start": at, "seconds": s}) for actor, at, s in rows]
    (tmp_path / "spans.jsonl").write_text("\n".join(lines) + "\n")
    timeline = read_timeline(tmp_path / "spans.jsonl")
    assert timeline.pauses == [Pause(4.0, 7196.0)]
    assert timeline.seconds == 10.0
    assert [[span.start for span in lane.spans] for lane in timeline.lanes] == [[0.0, 4.0], [1.0, 9.0]]


def test_a_closer_look_is_where_most_happens():
    quiet = [Span("compute", float(place), place + 1.0) for place in range(500)]
    busy = [Span("compute", 400 + place / 10, 400 + (place + 1) / 10) for place in range(500)]
    begin, end = busiest_window(Timeline([Lane("a", quiet), Lane("b", busy)], 500.0, 1000), most=100)
    assert 400 <= begin < end <= 460
