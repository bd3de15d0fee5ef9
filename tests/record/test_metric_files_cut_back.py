"""Metric files of a run that goes on are cut back row by row, whatever their values hold."""

import csv

import pytest

from proa import LoopState
from proa.callbacks import CsvMetrics, JsonlMetrics

NOTE = 'two\nlines, "quoted"\r\nand\u2028more'


def written(path, kind, steps, note=NOTE):
    callback = kind(path)
    callback.on_train_start(LoopState())
    for step in range(steps):
        callback.on_step_end(LoopState(), step, None, {"loss": float(step), "note": note})
    callback.on_train_end(LoopState(), None)


def gone_on(path, kind, step):
    callback = kind(path)
    callback.on_train_start(LoopState(resumed_from="step_2", global_step=step))
    callback.on_train_end(LoopState(), None)


def rows_in(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", [CsvMetrics, JsonlMetrics])
def test_the_first_rows_stay_as_they_were(tmp_path, kind):
    written(tmp_path / "whole", kind, 2)
    whole = (tmp_path / "whole").read_bytes()
    written(tmp_path / "cut", kind, 4)
    gone_on(tmp_path / "cut", kind, 2)
    times = [slice(0, whole.index(b"\n")), slice(len(whole) - 20, len(whole))]  # not when each was written
    cut = (tmp_path / "cut").read_bytes()
    assert len(cut) == pytest.approx(len(whole), abs=8)
    assert kind is JsonlMetrics or [cut[times[0]], cut[-20:]] == [whole[piece] for piece in times]


def test_line_breaks_within_a_value_of_a_table_do_not_end_its_row(tmp_path):
    written(tmp_path / "m.csv", CsvMetrics, 4)
    gone_on(tmp_path / "m.csv", CsvMetrics, 2)
    assert [(row["step"], row["note"]) for row in rows_in(tmp_path / "m.csv")] == [("0", NOTE), ("1", NOTE)]


@pytest.mark.parametrize("lost", [1, 3, 20, 30])
def test_half_a_row_is_dropped_wherever_it_was_torn(tmp_path, lost):
    path = tmp_path / "m.csv"
    written(path, CsvMetrics, 3)
    path.write_bytes(path.read_bytes()[:-lost])
    gone_on(path, CsvMetrics, 3)
    assert [(row["step"], row["note"]) for row in rows_in(path)] == [("0", NOTE), ("1", NOTE)]


@pytest.mark.parametrize("kind", [CsvMetrics, JsonlMetrics])
def test_a_row_that_cannot_be_read_is_left_out_and_said(tmp_path, kind, caplog):
    path = tmp_path / "m"
    written(path, kind, 3, note="plain")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\xff\x00 garbage\n", b"\n", *lines[2:]]))
    gone_on(path, kind, 2)
    assert path.read_bytes().splitlines(keepends=True) == lines[:-1]
    assert "m: line 3 cannot be read and is dropped" in caplog.text


@pytest.mark.parametrize("kind", [CsvMetrics, JsonlMetrics])
def test_rows_go_on_in_a_new_file_where_somebody_removed_the_old_one(tmp_path, kind, caplog):
    callback = kind(path := tmp_path / "m")
    callback.on_train_start(LoopState())
    for step in range(4):
        callback.on_step_end(LoopState(), step, None, {"loss": float(step)})
        if step == 1:
            path.unlink()
    callback.on_train_end(LoopState(), None)
    head = ["step"] if kind is CsvMetrics else []
    assert [line.partition(",")[0] for line in path.read_text().splitlines()] == (
        [*head, "2", "3"] if head else ['{"step": 2', '{"step": 3']
    )
    assert caplog.text.count("was removed or replaced during the run") == 1


def test_of_a_long_file_that_is_cut_back_already_only_the_end_is_read(tmp_path):
    """As after a run's own resume. What cannot be parsed at its beginning is never looked at."""
    path = tmp_path / "m.jsonl"
    step = '{{"step": {}, "epoch": 0, "loss": 1.0}}\n'
    late_eval = '{"step": 1990, "held_out.loss": 1.0}\n'  # its scores came after later steps
    content = "not JSON\n" + "".join(map(step.format, range(2000))) + late_eval
    assert len(content) > 2**16
    path.write_text(content)
    gone_on(path, JsonlMetrics, 2000)
    assert path.read_text() == content


def test_a_late_row_of_an_earlier_step_stays_when_later_steps_are_dropped(tmp_path):
    path = tmp_path / "m.jsonl"
    rows = ['{"step": 0, "epoch": 0}\n', '{"step": 1, "epoch": 0}\n', '{"step": 2, "epoch": 0}\n', '{"step": 0}\n']
    path.write_text("".join(rows))
    gone_on(path, JsonlMetrics, 2)
    assert path.read_text() == "".join([rows[0], rows[1], rows[3]])


def test_a_last_row_that_cannot_be_read_blocks_nobody(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 0, "epoch": 0}\ngarbage\n[]\n')
    gone_on(path, JsonlMetrics, 2)
    assert path.read_text() == '{"step": 0, "epoch": 0}\n'
