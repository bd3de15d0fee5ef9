"""Metrics on disk: complete, readable by anyone, and honest about what is not a number."""

import csv
import json
import math

import pytest
import torch

from proa import CallbackManager, LoopState, TrainingBatch
from proa.callbacks import CsvMetrics, JsonlMetrics
from proa.loop import Evaluator, SupervisedLoop


def train(tmp_path, callback, losses, **extra):
    losses = list(losses)
    loop = SupervisedLoop(
        lambda batch: {"loss": batch.data, **(extra if batch.data == losses[-1] else {})},
        callbacks=[callback],
        evaluators=[Evaluator("sort", lambda: {"exact": 0.5}, run_every=2)],
        output_dir=tmp_path,
    )
    return loop.fit(lambda epoch: [TrainingBatch(loss) for loss in losses])


def test_json_lines_hold_a_row_per_step_and_per_eval(tmp_path):
    train(tmp_path, JsonlMetrics(), [3.0, 2.0, 1.0])
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row.get("loss"), row.get("sort.exact")) for row in rows] == [
        (0, 3.0, None), (1, 2.0, None), (1, None, 0.5), (2, 1.0, None), (2, None, 0.5),
    ]  # fmt: skip


def test_what_is_not_a_number_stays_visible_and_the_file_stays_json(tmp_path):
    train(tmp_path, JsonlMetrics(), [math.nan, math.inf, -math.inf], tensor=torch.tensor(0.25), note="text", none=None)

    def refuse(constant):
        raise AssertionError(constant)

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [row["loss"] for row in rows if "loss" in row] == ["NaN", "Infinity", "-Infinity"]
    assert (rows[-2]["tensor"], rows[-2]["note"], rows[-2]["none"]) == (0.25, "text", None)


def test_a_row_is_on_disk_before_a_users_hook_for_its_step_runs(tmp_path):
    seen = []
    manager = CallbackManager([JsonlMetrics(tmp_path / "m.jsonl")])
    manager.on("step_end")(lambda: seen.append(len((tmp_path / "m.jsonl").read_text().splitlines())))
    SupervisedLoop(lambda batch: {"loss": 0.0}, callbacks=manager).fit(lambda epoch: [TrainingBatch(0)] * 3)
    assert seen == [1, 2, 3]


def test_csv_gets_a_column_for_what_appears_later(tmp_path):
    train(tmp_path, CsvMetrics(), [3.0, 2.0, 1.0], late=7.0)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["step", "epoch", "time", "loss", "sort.exact", "late"]
    assert [row["loss"] for row in rows] == ["3.0", "2.0", "", "1.0", ""]
    assert [row["late"] for row in rows] == ["", "", "", "7.0", ""]
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize("kind", [JsonlMetrics, CsvMetrics])
def test_a_step_that_was_cut_short_leaves_no_row(tmp_path, kind):
    def fail(batch):
        raise RuntimeError("lost the GPU")

    callback = kind(tmp_path / "metrics")
    with pytest.raises(RuntimeError):
        SupervisedLoop(fail, callbacks=[callback]).fit(lambda epoch: [TrainingBatch(0)])
    assert (tmp_path / "metrics").read_text() == ""


@pytest.mark.parametrize("kind", [JsonlMetrics, CsvMetrics])
def test_a_second_run_starts_the_file_anew_and_a_resumed_one_appends(tmp_path, kind):
    manager = CallbackManager([kind(tmp_path / "metrics")])
    for resumed_from, lines in ((None, 1), (None, 1), ("step_1", 2), ("step_2", 3)):
        state = LoopState(resumed_from=resumed_from)
        manager.fire("train_start", state)
        manager.fire("step_end", state, 0, metrics={"loss": 1.0})
        manager.fire("train_end", state)
        rows = len((tmp_path / "metrics").read_text().splitlines())
        assert rows == lines + (kind is CsvMetrics)


def test_nowhere_to_write_is_said_and_does_not_hurt_the_run(tmp_path, caplog):
    manager = CallbackManager([JsonlMetrics()])
    SupervisedLoop(lambda batch: {}, callbacks=manager).fit(lambda epoch: [TrainingBatch(0)] * 5)
    assert "JsonlMetrics has nowhere to write: give it a path, or the run an output_dir" in caplog.text
    assert manager.errors["JsonlMetrics"] == 4
