"""Whatever goes wrong at whatever file operation: the old checkpoint or the new one is there, loadable and verified."""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.record.faulty_disk import OPERATIONS, Crash, FaultyDisk, ForgetfulDisk, QuickDisk, inside

from proa import ManifestRow
from proa.record.checkpoints import CheckpointError, CheckpointManager, DiskFullError
from proa.record.state_files import read_state, write_state

torch.set_num_threads(1)


def row(step: int, **more) -> ManifestRow:
    return ManifestRow(f"step_{step}", step - 1, 0, step=step, **more)


def writer(step, disk=None):
    """Writes a state that says which step it is of, and a model that does too."""

    def write(folder: Path) -> None:
        write_state(folder / "state", {"step": step, "weights": torch.full((50,), float(step))}, disk=disk)
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps({"step": step}))

    return write


def run_with(tmp_path: Path, steps: list[int]) -> Path:
    run = tmp_path / "run"
    run.mkdir(parents=True)
    for step in steps:
        CheckpointManager(run, disk=QuickDisk()).save(row(step), writer(step))
    return run


def copies_of(run: Path, count: int):
    """The same run, over and over."""
    for number in range(count):
        copy = run.with_name(f"copy_{number}")
        shutil.copytree(run, copy)
        yield number, copy


def loaded(run: Path) -> int:
    """The step that a new reader goes on from, having read all of it."""
    reader = CheckpointManager(run)
    found, passed_over = reader.newest_good()
    assert passed_over == []
    assert found.state_path is not None
    state = read_state(run / found.state_path)
    assert state["weights"].tolist() == [state["step"]] * 50
    assert state["step"] == found.step == json.loads((reader.path(found) / "model" / "config.json").read_text())["step"]
    return found.step


def save(run, disk):
    CheckpointManager(run, disk=disk).save(row(4), writer(4, disk))


def save_and_prune(run, disk):
    CheckpointManager(run, keep_last=1, disk=disk).save(row(4), writer(4, disk))


def save_again(run, disk):
    CheckpointManager(run, disk=disk).save(row(2), writer(2, disk))


def mark_final(run, disk):
    CheckpointManager(run, disk=disk).mark_final("step_2")


def forget_after(run, disk):
    CheckpointManager(run, disk=disk).forget_after(1)


def remove(run, disk):
    manager = CheckpointManager(run, disk=disk)
    manager.remove(manager.row("step_1"))


ACTIONS = {
    save: ([2], {2, 4}),
    save_and_prune: ([1, 2], {2, 4}),
    save_again: ([2], {2}),
    mark_final: ([1, 2], {2}),
    forget_after: ([1, 2, 3], {1, 2, 3}),
    remove: ([1, 2], {2}),
}


def operations_of(action, tmp_path: Path) -> list[str]:
    disk = FaultyDisk()
    action(run_with(tmp_path, ACTIONS[action][0]), disk)
    return disk.log


@pytest.mark.parametrize("fault", ["crash", "torn", "ENOSPC", "EIO", "short", "dead"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_fault_at_any_operation_leaves_the_old_or_the_new_checkpoint(action, fault, tmp_path):
    steps, allowed = ACTIONS[action]
    count = len(operations_of(action, tmp_path / "whole"))
    for at, run in copies_of(run_with(tmp_path, steps), count):
        failed, disk = False, FaultyDisk(fault, at)
        try:
            action(run, disk)
        except (Crash, CheckpointError, OSError):
            failed = True
        assert loaded(run) in allowed, at
        assert not (failed and fault == "short"), at
        assert fault != "crash" or disk.log[at + 1 :] == [], "something went on after a crash"
        CheckpointManager(run, keep_last=1, disk=QuickDisk()).save(row(9), writer(9))
        assert loaded(run) == 9, at
        assert inside(run / "checkpoints") == ["step_9"], at


@pytest.mark.parametrize("action", ACTIONS)
def test_a_power_cut_at_any_operation_leaves_the_old_or_the_new_checkpoint(action, tmp_path):
    steps, allowed = ACTIONS[action]
    whole = ForgetfulDisk()
    action(run_with(tmp_path / "whole", steps), whole)
    for at, run in copies_of(run_with(tmp_path, steps), whole.count + 1):
        disk = ForgetfulDisk(at + 1)
        try:
            action(run, disk)
            disk.power_cut()  # just after it
        except Crash:
            pass
        assert loaded(run) in allowed, at


@pytest.mark.parametrize("manifest", ["", '{"name": "step_2", "removed": true}\n'])
def test_what_was_saved_survives_a_power_cut_after_it(manifest, tmp_path):
    run = run_with(tmp_path, [])
    if manifest:
        (run / "checkpoints.jsonl").write_text(manifest)
    disk = ForgetfulDisk()
    save_and_prune(run, disk)
    disk.power_cut()
    assert loaded(run) == 4


def test_what_is_forgotten_is_forgotten_from_the_newest_on(tmp_path):
    at = operations_of(forget_after, tmp_path / "whole").index("write")
    run = run_with(tmp_path, [1, 2, 3])
    with pytest.raises(Crash):
        forget_after(run, FaultyDisk("torn", at))
    assert [one.name for one in CheckpointManager(run).rows] == ["step_1", "step_2"]


def test_an_error_of_the_disk_is_told_with_the_path(tmp_path):
    run = run_with(tmp_path, [2])
    with pytest.raises(CheckpointError, match=rf"step_4 in {run}/checkpoints cannot be written: .*Input/output error"):
        save(run, FaultyDisk("EIO", operations_of(save, tmp_path / "whole").index("write")))


def test_a_save_goes_through_every_kind_of_operation(tmp_path):
    """Else the sweeps would sweep nothing."""
    log = operations_of(save_and_prune, tmp_path / "whole")
    assert set(log) == set(OPERATIONS) - {"cut"}
    run = run_with(tmp_path, [])
    (run / "checkpoints.jsonl").write_text('{"name": "st')
    disk = FaultyDisk()
    save(run, disk)
    assert "cut" in disk.log


@pytest.mark.parametrize("action", [save, save_and_prune, save_again])
def test_an_error_leaves_no_temporary_folder(action, tmp_path):
    steps = ACTIONS[action][0]
    log = operations_of(action, tmp_path / "whole")
    for at, run in copies_of(run_with(tmp_path, steps), len(log)):
        try:
            action(run, FaultyDisk("ENOSPC", at))
        except (CheckpointError, OSError):
            assert inside(run / "checkpoints") == [f"step_{step}" for step in steps], at


def test_a_checkpoint_that_was_written_stays_written_when_pruning_fails(tmp_path, caplog):
    run = run_with(tmp_path, [1, 2])
    disk = FaultyDisk("EIO", operations_of(save_and_prune, tmp_path / "whole").index("remove_tree"))
    save_and_prune(run, disk)
    assert loaded(run) == 4
    assert "cannot be removed" in caplog.text


def test_a_full_disk_is_told_with_path_need_and_room(tmp_path):
    run = run_with(tmp_path, [2])

    def write(folder: Path) -> None:
        (folder / "state").mkdir()
        (folder / "state" / "a").write_bytes(b"x" * 300)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskFullError) as caught:
        CheckpointManager(run).save(row(4), write)
    words = str(caught.value)
    needed = sum(CheckpointManager(run).row("step_2").sizes.values())
    assert str(run / "checkpoints") in words
    assert "step_4" in words
    assert "No space left on device" in words
    assert f"about {needed} bytes, as step_2 did" in words
    assert "300 bytes were written" in words
    assert "GB are free" in words or "MB are free" in words
    assert inside(run / "checkpoints") == ["step_2"]


def test_other_errors_of_the_writer_pass_as_they_are_and_leave_nothing(tmp_path):
    run = run_with(tmp_path, [2])

    def write(folder: Path) -> None:
        (folder / "state").mkdir()
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        CheckpointManager(run).save(row(4), write)
    assert inside(run / "checkpoints") == ["step_2"]


LIMITED = """
import resource, sys
from pathlib import Path
import numpy, safetensors.numpy
from proa.data.loop import ManifestRow
from proa.record.checkpoints import CheckpointManager, DiskFullError

def write(folder):
    (folder / "state").mkdir()
    if sys.argv[2] == "plain":
        (folder / "state" / "big").write_bytes(bytes(100_000))
    else:
        safetensors.numpy.save_file({"a": numpy.zeros(100_000)}, folder / "state" / "big.safetensors")

resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # Python ignores SIGXFSZ by itself
try:
    CheckpointManager(Path(sys.argv[1])).save(ManifestRow("step_4", 3, 0, step=4), write)
except DiskFullError as error:
    print(error)
    assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("how", ["plain", "safetensors"])
def test_a_real_limit_on_the_size_of_files_keeps_the_old_checkpoint(how, tmp_path):
    run = run_with(tmp_path, [2])
    done = subprocess.run([sys.executable, "-c", LIMITED, run, how], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert "no file may be larger than 50.0 kB" in done.stdout
    assert loaded(run) == 2
    assert inside(run / "checkpoints") == ["step_2"]
