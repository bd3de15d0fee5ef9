"""Metrics on disk: complete, readable by anyone, and honest about what is not a number."""

import csv
import json
import math
import os
import stat
from pathlib import Path

import pytest
import torch

from proa import CallbackManager, LoopState, TrainingBatch
from proa.callbacks import CsvMetrics, JsonlMetrics
from proa.errors import CallbackConfigError
from proa.loop import ScoreFunction, SupervisedLoop


def train(tmp_path, callback, losses, **extra):
    losses = list(losses)
    loop = SupervisedLoop(
        lambda batch: {"loss": batch.data, **(extra if batch.data == losses[-1] else {})},
        callbacks=[callback],
        evaluators=[ScoreFunction("sort", lambda: {"exact": 0.5}, run_every=2)],
        output_dir=tmp_path,
    )
    return loop.fit(lambda epoch: [TrainingBatch(loss) for loss in losses])


def test_json_lines_hold_a_row_per_step_and_per_eval(tmp_path):
    train(tmp_path, JsonlMetrics(), [3.0, 2.0, 1.0])
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row.get("loss"), row.get("sort.exact")) for row in rows] == [
        (0, 3.0, None), (1, 2.0, None), (1, None, 0.5), (2, 1.0, None), (2, None, 0.5),
    ]  # fmt: skip


def test_a_late_evals_row_does_not_say_the_epoch_of_when_it_was_told(tmp_path):
    metrics = JsonlMetrics(tmp_path / "m.jsonl")
    metrics.on_train_start(LoopState())
    for step_idx in (4, 1):
        metrics.on_eval(LoopState(global_step=5, epoch=2), step_idx, "sort", {"exact": 0.5})
    metrics.on_train_end(LoopState(), None)
    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [(row["step"], row.get("epoch")) for row in rows] == [(4, 2), (1, None)]


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
def test_a_second_run_starts_the_file_anew(tmp_path, kind):
    manager = CallbackManager([kind(tmp_path / "metrics")])
    for _ in range(2):
        manager.fire("train_start", LoopState())
        manager.fire("step_end", LoopState(), 0, metrics={"loss": 1.0})
        manager.fire("train_end", LoopState())
    assert len((tmp_path / "metrics").read_text().splitlines()) == 1 + (kind is CsvMetrics)


@pytest.mark.parametrize("kind", [JsonlMetrics, CsvMetrics])
def test_a_resumed_run_goes_on_after_its_checkpoint_without_a_step_twice_or_half(tmp_path, kind):
    path = tmp_path / "metrics"
    manager = CallbackManager([kind(path)])
    manager.fire("train_start", LoopState())
    for step_idx in range(4):
        manager.fire("step_end", LoopState(), step_idx, metrics={"loss": float(step_idx)})
    with path.open("a") as file:
        file.write('{"step": 4, "lo' if kind is JsonlMetrics else "4,0,17")
    state = LoopState(resumed_from="step_2", global_step=2)
    manager.fire("train_start", state)
    manager.fire("step_end", state, 2, metrics={"loss": 7.0})
    manager.fire("train_end", state)
    lines = path.read_text().splitlines()
    if kind is JsonlMetrics:
        rows = [json.loads(line) for line in lines]
    else:
        rows = list(csv.DictReader(lines))
    assert [(int(row["step"]), float(row["loss"])) for row in rows] == [(0, 0.0), (1, 1.0), (2, 7.0)]


def test_a_metric_cannot_take_the_place_of_the_rows_own_keys(tmp_path):
    manager = CallbackManager([JsonlMetrics(tmp_path / "m")])
    manager.fire("train_start", LoopState())
    manager.fire("step_end", LoopState(), 3, metrics={"step": 99.0, "loss": 1.0})
    manager.fire("train_end", LoopState())
    assert json.loads((tmp_path / "m").read_text())["step"] == 3


def test_nowhere_to_write_is_a_wrong_setting_and_ends_the_run_at_once():
    with pytest.raises(CallbackConfigError, match="JsonlMetrics has nowhere to write: give it a path"):
        SupervisedLoop(lambda batch: {}, callbacks=[JsonlMetrics()]).fit(lambda epoch: [TrainingBatch(0)] * 5)


def test_a_disk_that_fails_does_not_hurt_the_run(tmp_path, caplog):
    callback = JsonlMetrics(tmp_path / "m")
    manager = CallbackManager([callback])

    def step(batch):
        callback._file.close()
        return {"loss": 1.0}

    state = SupervisedLoop(step, callbacks=manager).fit(lambda epoch: [TrainingBatch(0)] * 5)
    assert state.global_step == 5
    assert manager.errors == {"JsonlMetrics": 4}  # three steps until it is disabled, and the end, which it still hears


@pytest.mark.parametrize("kind", [JsonlMetrics, CsvMetrics])
def test_a_secret_is_not_written_by_its_key_nor_by_its_value(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("PLANTED_TOKEN", "planted-by-env-7")
    train(tmp_path, kind(tmp_path / "metrics"), [2.0, 1.0], api_key="planted-key-7", note="401 for planted-by-env-7!")
    written = (tmp_path / "metrics").read_text()
    assert "planted" not in written
    assert "401 for REDACTED!" in written
    assert "1.0" in written


@pytest.mark.parametrize("kind", [JsonlMetrics, CsvMetrics])
def test_the_file_and_the_folders_made_for_it_are_their_owners_alone(tmp_path, kind, monkeypatch):
    def rights(path):
        return stat.S_IMODE(path.stat().st_mode)

    replace, put_in_place = Path.replace, []
    monkeypatch.setattr(Path, "replace", lambda new, old: (put_in_place.append(rights(new)), replace(new, old))[1])
    folder, before = tmp_path / "new" / "folder", os.umask(0)
    try:
        train(tmp_path, kind(folder / "metrics"), [2.0, 1.0], late=1.0)  # a late column writes the file anew
        assert (rights(folder.parent), rights(folder), rights(folder / "metrics")) == (0o700, 0o700, 0o600)
        (folder / "metrics").chmod(0o644)
        manager = CallbackManager([kind(folder / "metrics")])
        manager.fire("train_start", LoopState(resumed_from="step_1", global_step=1))
        manager.fire("step_end", LoopState(), 1, metrics={"loss": 1.0, "another": 2.0})
        manager.fire("train_end", LoopState())
    finally:
        os.umask(before)
    assert rights(folder / "metrics") == 0o600
    assert set(put_in_place) == {0o600}
    assert len(put_in_place) == (1 if kind is JsonlMetrics else 5)  # cut back once; a column more is a file anew


@pytest.mark.parametrize("kind", [JsonlMetrics, CsvMetrics])
def test_what_came_after_a_checkpoint_and_comes_again_is_not_written_twice(tmp_path, kind):
    """Such as what a hook logs when it hears of the checkpoint, which a resumed run announces again."""
    manager, state = CallbackManager([kind(tmp_path / "m")]), LoopState()
    manager.fire("train_start", state)
    state.global_step = 1
    manager.fire("step_end", state, 0, metrics={"loss": 1.0})
    manager.fire("metrics_logged", state, 0, {"uploaded": 2.0})
    manager.fire("train_end", state)
    written = (tmp_path / "m").read_text()
    state = LoopState(resumed_from="step_1", global_step=1)
    manager.fire("train_start", state)
    manager.fire("metrics_logged", state, 0, {"uploaded": 3.0})
    assert (tmp_path / "m").read_text() == written
    manager.fire("metrics_logged", state, 0, {"new": 4.0})
    state.global_step = 2
    manager.fire("metrics_logged", state, 1, {"uploaded": 5.0})
    manager.fire("train_end", state)
    assert len((tmp_path / "m").read_text().splitlines()) == len(written.splitlines()) + 2
