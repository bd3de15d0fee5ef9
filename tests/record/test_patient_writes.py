"""A disk that fails for a while, or for good: the record fills in what is missing, or the run ends and says why."""

import csv
import errno
import json
import logging
import os

import pytest
from tests.record.faulty_disk import FaultyDisk

from proa import Callback, TrainingBatch
from proa.callbacks import CsvMetrics, JsonlMetrics
from proa.loop import ScoreFunction, SupervisedLoop
from proa.record import patient_writes
from proa.record.journal import Journal
from proa.record.patient_writes import LineFile, PatientWrites, RecordError
from proa.record.spans import SpanRecord

FAULTS = ("ENOSPC", "EIO", "short")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(patient_writes, "sleep", lambda seconds: None)


def train(folder, callback, *others, steps=4):
    loop = SupervisedLoop(
        lambda batch: {"loss": batch.data, **({"late": 1.0} if batch.data > 1 else {})},
        callbacks=[callback, *others],
        evaluators=[ScoreFunction("sort", lambda: {"exact": 0.5}, run_every=2)],
        output_dir=folder,
    )
    return loop.fit(lambda epoch: [TrainingBatch(float(step)) for step in range(steps)])


def json_rows(path):
    return [{**json.loads(line), "time": 0} for line in path.read_text().splitlines()]


def csv_rows(path):
    with path.open(newline="") as file:
        return [{**row, "time": 0} for row in csv.DictReader(file)]


def on(disk, callback):
    callback.disk = disk
    return callback


@pytest.mark.parametrize(("kind", "rows"), [(JsonlMetrics, json_rows), (CsvMetrics, csv_rows)])
def test_metrics_fill_in_what_a_disk_did_not_take_wherever_it_fails(tmp_path, kind, rows):
    name = kind.default_name
    sound = FaultyDisk()
    train(tmp_path / "sound", on(sound, kind()))
    expected = rows(tmp_path / "sound" / name)
    assert len(expected) == 6
    assert len(sound.log) == 6
    for fault in FAULTS:
        for at in range(len(sound.log)):
            folder = tmp_path / f"{fault}-{at}"
            train(folder, on(FaultyDisk(fault, at), kind(required=True)))
            assert rows(folder / name) == expected, folder.name


class Outage(FaultyDisk):
    """Takes no write while it is on; half of a line before that."""

    def __init__(self):
        super().__init__()
        self.on = False

    def write(self, descriptor, data):
        if not self.on:
            return super().write(descriptor, data)
        os.write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class DuringSteps(Callback):
    def __init__(self, disk, steps):
        self.disk, self.steps = disk, steps

    def on_train_start(self, state):
        self.disk.on = 0 in self.steps

    def on_step_end(self, state, step_idx, batch, metrics):
        self.disk.on = step_idx + 1 in self.steps


def test_an_outage_of_several_steps_is_said_once_and_filled_in(tmp_path, caplog):
    disk = Outage()
    train(tmp_path, on(disk, JsonlMetrics(required=True)), DuringSteps(disk, range(1, 5)), steps=8)
    assert [row["step"] for row in json_rows(tmp_path / "metrics.jsonl")] == [0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2
    assert "metrics.jsonl cannot be written for now: No space left" in said[0]
    assert "nothing is missing" in said[1]


def test_a_record_that_cannot_be_written_to_the_end_fails_the_run_with_path_and_error(tmp_path):
    disk = Outage()
    with pytest.raises(RecordError, match=r"metrics.jsonl cannot be written: .*No space left.*4 entries"):
        train(tmp_path, on(disk, JsonlMetrics(required=True)), DuringSteps(disk, range(1, 9)), steps=3)
    assert [row["step"] for row in json_rows_that_are_whole(tmp_path / "metrics.jsonl")] == [0]


def json_rows_that_are_whole(path):
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def test_too_much_that_waits_ends_the_run_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(patient_writes, "MOST_WAITING", 2)
    disk, done = Outage(), []

    class Count(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            done.append(step_idx)

    with pytest.raises(RecordError, match="metrics.jsonl cannot be written"):
        train(tmp_path, on(disk, JsonlMetrics(required=True)), DuringSteps(disk, range(9)), Count(), steps=8)
    assert max(done) < 3


def test_a_logger_of_metrics_that_cannot_be_written_does_not_fail_the_run(tmp_path):
    disk = Outage()
    state = train(tmp_path, on(disk, JsonlMetrics()), DuringSteps(disk, range(9)), steps=3)
    assert state.global_step == 3


def test_journal_and_spans_are_whole_after_a_failed_try(tmp_path):
    entries = [[{"kind": "lease", "step": step, "lease": step}] for step in range(3)]
    spans = [[{"actor": "a", "kind": "b", "start": 1.0, "seconds": float(step)}] for step in range(3)]
    for kind, batches in ((Journal, entries), (SpanRecord, spans)):
        for fault in FAULTS:
            for at in range(3):
                folder = tmp_path / f"{kind.__name__}-{fault}-{at}"
                folder.mkdir()
                record, writes = kind(folder, FaultyDisk(fault, at)), PatientWrites()
                for batch in batches:
                    writes.write(record.path, lambda record=record, batch=batch: record.append(batch))
                writes.finish()
                assert list(record.read()) == [entry for batch in batches for entry in batch]


def test_a_pipe_is_written_to_and_never_cut():
    here, there = os.pipe()
    lines = LineFile(FaultyDisk("ENOSPC", 0))
    with pytest.raises(OSError, match="No space left"):
        lines.append(there, b"abcd\n")
    lines.append(there, b"abcd\n")
    os.close(there)
    assert os.read(here, 100).endswith(b"abcd\n")
    os.close(here)
