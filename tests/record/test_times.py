"""For how long a run was going, and when it was last seen: across processes that ended, and that were cut off."""

import json
import time

import pytest

from proa.record import reading
from proa.record.live import LiveFile, LiveView
from proa.record.reading import read_run
from proa.record.run_folder import RunFolder
from proa.record.times import RunningTime, is_time, previous_process, running_time


def begun(path, ago=1000.0, **entries):
    run = RunFolder.create(path, {"total_steps": 10})
    run.update(started=time.time() - ago, **entries)
    return run


def rows(path, *times):
    path.joinpath("metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "time": at}) + "\n" for step, at in enumerate(times))
    )


def test_a_resumed_run_that_is_still_loading_was_just_seen(tmp_path):
    run = begun(tmp_path / "run")
    rows(run.path, time.time() - 900)
    RunFolder.reopen(run.path, {"total_steps": 10})
    record = read_run(run.path)
    assert record.quiet_seconds < 60
    assert record.is_starting


def test_the_view_of_the_process_before_is_removed(tmp_path):
    run = begun(tmp_path / "run")
    LiveFile(run.path).look(lambda: LiveView(time.time() - 900))
    RunFolder.reopen(run.path, {"total_steps": 10})
    assert not (run.path / "live.json").exists()


def test_a_view_of_the_process_before_is_not_taken_for_this_one(tmp_path):
    run = begun(tmp_path / "run", resumed=[{"at": time.time() - 100}])
    LiveFile(run.path).look(lambda: LiveView(time.time() - 200))
    assert read_run(run.path).live is None
    LiveFile(run.path).look(lambda: LiveView(time.time() - 50))
    assert read_run(run.path).live is not None


def test_a_run_with_a_row_since_it_was_resumed_is_ready(tmp_path):
    run = begun(tmp_path / "run", resumed=[{"at": time.time() - 100}])
    rows(run.path, time.time() - 200)
    assert read_run(run.path).is_starting
    rows(run.path, time.time() - 200, time.time() - 10)
    assert not read_run(run.path).is_starting


def test_two_resumes_are_two_entries(tmp_path):
    run = begun(tmp_path / "run")
    RunFolder.reopen(run.path, {}, checkpoint="step_1")
    RunFolder.reopen(run.path, {}, checkpoint="step_2")
    header = json.loads((run.path / "run.json").read_text())
    assert [entry["checkpoint"] for entry in header["resumed"]] == ["step_1", "step_2"]


def test_the_pause_after_an_end_does_not_count(tmp_path):
    run = begun(tmp_path / "run", ago=1000.0)
    run.update(status="cancelled", ended=time.time() - 900)
    RunFolder.reopen(run.path, {}).update(status="completed", ended=time.time() + 50)
    found = read_run(run.path).running_time
    assert found.seconds == pytest.approx(150, abs=5)
    assert not found.is_approximate


@pytest.mark.parametrize("seen", ["view", "row", "nothing"])
def test_the_pause_after_a_process_that_was_cut_off_begins_when_it_was_last_seen(tmp_path, seen):
    run = begun(tmp_path / "run", ago=1000.0)
    if seen == "view":
        LiveFile(run.path).look(lambda: LiveView(time.time() - 900))
    if seen == "row":
        rows(run.path, time.time() - 950, time.time() - 900)
    RunFolder.reopen(run.path, {}).update(status="completed", ended=time.time() + 50)
    found = read_run(run.path).running_time
    assert found.seconds == pytest.approx(50 if seen == "nothing" else 150, abs=5)
    assert found.is_approximate


def test_every_pause_is_left_out():
    resumed = [{"at": 200.0, "left": 150.0}, {"at": 400.0, "left": 250.0, "cut_off": True}, {"at": 450.0}]
    assert running_time({"started": 100.0, "resumed": resumed}, 500.0) == RunningTime(200.0, is_approximate=True)


def test_a_broken_view_is_no_sign_of_life(tmp_path):
    run = begun(tmp_path / "run")
    (run.path / "live.json").write_text('{"time": ')
    (run.path / "metrics.jsonl").write_text("no row\n")
    header = json.loads((run.path / "run.json").read_text())
    assert previous_process(run.path, header) == {"left": header["started"], "cut_off": True}


def test_what_a_run_failed_from_is_kept_when_it_is_resumed(tmp_path):
    run = begun(tmp_path / "run")
    run.update(status="failed", ended=5.0, stop_reason="ValueError: my bug")
    resumed = RunFolder.reopen(run.path, {})
    (entry,) = json.loads((resumed.path / "run.json").read_text())["resumed"]
    assert (entry["left"], entry["reason"]) == (5.0, "ValueError: my bug")


def test_a_rate_does_not_count_the_pause(tmp_path):
    now = time.time()
    run = begun(tmp_path / "run", resumed=[{"at": now - 100}])
    rows(run.path, now - 902, now - 901, now - 10, now - 8, now - 6)
    assert read_run(run.path).steps_per_second == pytest.approx(0.5)


def test_a_process_that_no_system_has_is_gone(tmp_path):
    for pid in (10**30, -1, 0):
        assert read_run(begun(tmp_path / f"run{pid}", pid=pid).path).process is reading.Process.GONE


@pytest.mark.parametrize("value", [True, None, "1", -1.0, float("inf"), float("nan")])
def test_what_no_clock_shows_is_no_time(value):
    assert not is_time(value)
