"""Two runs never share a folder, and a lock ends with its holder, however that ends."""

import os
import platform
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest
from tests.record.faulty_disk import inside

from proa.record import run_lock
from proa.record.checkpoints import RunLockedError, lock
from proa.record.run_folder import RunFolder, RunFolderError, check_unused

HOLD = """
import os, sys, time
from pathlib import Path
from proa.record.run_lock import lock
with lock(Path(sys.argv[1])):
    if os.fork() == 0:
        print(os.getpid(), flush=True)  # from the child: what it does when it is forked is done
        time.sleep(600)
        os._exit(0)
    sys.stdin.read()
"""


@contextmanager
def holder(folder):
    """A process that holds the lock, and a child of it that outlives it for a while."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child = int(process.stdout.readline())
    try:
        yield process
        os.kill(child, 0)  # it is there still
    finally:
        end(process)
        os.kill(child, signal.SIGKILL)


def end(process):
    process.stdin.close()
    process.stdout.close()
    process.wait(60)


def test_another_process_is_refused_by_name_and_let_in_when_the_first_is_killed(tmp_path):
    with holder(tmp_path) as process:
        with pytest.raises(RunLockedError, match=rf"used by another process \(pid {process.pid}\)"):
            with lock(tmp_path):
                pass
        assert (tmp_path / ".lock").exists()
        process.kill()
        process.wait(60)
        with lock(tmp_path):
            pass


def test_one_who_is_patient_has_it_when_the_other_leaves_and_is_refused_when_not(tmp_path, caplog, monkeypatch):
    with ExitStack() as first:
        first.enter_context(lock(tmp_path))
        with pytest.raises(RunLockedError):
            with lock(tmp_path, patience=0.01):
                pass
        assert caplog.text.count("waiting for it") == 1
        monkeypatch.setattr(run_lock, "sleep", lambda seconds: first.close())  # the other leaves in the meantime
        with lock(tmp_path, patience=60.0):
            assert (tmp_path / ".lock").exists()
    assert caplog.text.count("waiting for it") == 2


def test_the_same_process_cannot_have_it_twice(tmp_path):
    with lock(tmp_path):
        with pytest.raises(RunLockedError, match=rf"this process \(pid {os.getpid()}\) already"):
            with lock(tmp_path):
                pass
        assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o600
    with lock(tmp_path):
        pass


def test_a_lock_is_released_by_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError):
        with lock(tmp_path):
            raise ZeroDivisionError
    with lock(tmp_path):
        pass


def test_a_lock_leaves_nothing_behind_where_nothing_was_made(tmp_path):
    with lock(tmp_path / "runs" / "a"):
        check_unused(tmp_path / "runs" / "a")
    assert list(tmp_path.iterdir()) == []
    with lock(tmp_path / "runs" / "a"):
        RunFolder.create(tmp_path / "runs" / "a", {})
    assert inside(tmp_path / "runs" / "a") == ["config.json", "run.json"]
    with pytest.raises(RunFolderError, match="was already used"):
        check_unused(tmp_path / "runs" / "a")


def test_a_lock_on_a_file_that_was_removed_keeps_nobody_out_and_takes_nobody_elses(tmp_path):
    with lock(tmp_path):
        (tmp_path / ".lock").unlink()
        with lock(tmp_path):
            pass
        with lock(tmp_path):
            (tmp_path / "mine").touch()
    assert inside(tmp_path) == ["mine"]


def test_a_lock_whose_file_was_removed_while_it_was_taken_is_taken_again(tmp_path, monkeypatch):
    take, taken = run_lock._take, []

    def take_late(descriptor, folder, until):
        if not taken:
            (tmp_path / ".lock").unlink()  # the one before has just ended
        taken.append(descriptor)
        take(descriptor, folder, until)

    monkeypatch.setattr(run_lock, "_take", take_late)
    with lock(tmp_path):
        assert len(taken) == 2
        with pytest.raises(RunLockedError):
            with lock(tmp_path):
                pass


def test_a_lock_that_ends_leaves_anothers_alone(tmp_path):
    with ExitStack() as second:
        with lock(tmp_path):
            (tmp_path / ".lock").unlink()
            second.enter_context(lock(tmp_path))
        with pytest.raises(RunLockedError):
            with lock(tmp_path):
                pass


def test_what_a_killed_holder_wrote_is_written_over(tmp_path):
    (tmp_path / ".lock").write_text(f"{'9' * 30} elsewhere\n")
    with lock(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()} {platform.node()}\n"


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        with lock(tmp_path):
            pass
    assert not (tmp_path / "elsewhere").exists()


def test_the_files_of_a_run_are_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        RunFolder.create(tmp_path / "run", {"a": 1})
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run", *(tmp_path / "run").iterdir())}
    assert modes == {"run": 0o700, "config.json": 0o600, "run.json": 0o600}
