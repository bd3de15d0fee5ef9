"""What a run writes is its owner's alone, whatever the umask, and the umask stays as it is."""

import os
import stat
from pathlib import Path

import pytest

from proa.private_files import (
    make_private_folder,
    open_private,
    private_writing,
    restrict_folder,
    write_private,
)
from proa.record.live import LiveFile, LiveView
from proa.record.run_folder import RunFolder


@pytest.fixture(params=[0o000, 0o022, 0o277], ids=oct)
def umask(request):
    """Nothing taken away, the usual, and one that takes from the owner too."""
    before = os.umask(request.param)
    yield request.param
    assert os.umask(before) == request.param


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_private_from_its_first_byte(tmp_path, umask):
    with open_private(tmp_path / "a", "w") as file:
        assert mode(tmp_path / "a") == 0o600
        file.write("text\n")
    write_private(tmp_path / "b", "text\n")
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() == "text\n"
    assert mode(tmp_path / "b") == 0o600


def test_there_is_no_moment_in_which_others_have_rights(tmp_path, monkeypatch):
    seen, before = [], os.umask(0)
    monkeypatch.setattr(os, "fchmod", lambda descriptor, _: seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode)))
    monkeypatch.setattr(Path, "chmod", lambda path, _: seen.append(mode(path)))
    try:
        make_private_folder(tmp_path / "folder")
        write_private(tmp_path / "folder" / "file", "text")
    finally:
        os.umask(before)
    assert seen == [0o700, 0o600]


def test_a_file_that_was_there_loses_the_rights_of_others_and_keeps_what_is_added_to(tmp_path):
    for name in ("a", "w"):
        (tmp_path / name).write_text("old\n")
        (tmp_path / name).chmod(0o666)
        with open_private(tmp_path / name, name) as file:
            file.write("new\n")
        assert mode(tmp_path / name) == 0o600
    assert (tmp_path / "a").read_text() == "old\nnew\n"
    assert (tmp_path / "w").read_text() == "new\n"


def test_what_is_no_plain_file_keeps_its_rights(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").chmod(0o644)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with open_private(tmp_path / "pipe", "w"):
        assert mode(tmp_path / "pipe") == 0o644
    os.close(reader)


def test_every_folder_that_was_missing_is_private_and_one_that_was_there_stays(tmp_path, umask):
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path / "a" / "b")
    make_private_folder(tmp_path / "a" / "b")
    assert (mode(tmp_path), mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o755, 0o700, 0o700)


def test_a_file_where_a_folder_should_be_is_an_error(tmp_path):
    (tmp_path / "taken").write_text("")
    for folder in (tmp_path / "taken", tmp_path / "taken" / "inner"):
        with pytest.raises(FileExistsError):
            make_private_folder(folder)


def test_a_folder_that_is_there_can_be_closed_to_others(tmp_path):
    tmp_path.chmod(0o777)
    restrict_folder(tmp_path)
    assert mode(tmp_path) == 0o700


def test_what_a_library_writes_is_private_afterwards_however_deep(tmp_path, umask):
    with private_writing(tmp_path / "model"):
        assert mode(tmp_path / "model") == 0o700  # nobody reaches in while it writes
        (tmp_path / "model" / "inner").mkdir()
        (tmp_path / "model" / "inner").chmod(0o755)
        for name in ("a", "inner/b"):
            (tmp_path / "model" / name).write_text("x")
            (tmp_path / "model" / name).chmod(0o644)
    assert mode(tmp_path / "model" / "inner") == 0o700
    assert mode(tmp_path / "model" / "a") == mode(tmp_path / "model" / "inner" / "b") == 0o600


def test_what_lay_there_before_and_was_not_written_to_stays_as_it_is(tmp_path):
    tmp_path.chmod(0o755)
    for name in ("script", "overwritten"):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(0o755)
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "link").symlink_to(tmp_path / "script")
    with private_writing(tmp_path):
        (tmp_path / "overwritten").write_text("y")
        (tmp_path / "another_link").symlink_to(tmp_path / "script")
    assert (mode(tmp_path), mode(tmp_path / "script"), mode(tmp_path / "overwritten")) == (0o755, 0o755, 0o600)


def test_a_library_that_fails_leaves_nothing_readable_behind(tmp_path):
    def fail():
        with private_writing(tmp_path / "model"):
            (tmp_path / "model" / "half").write_text("x")
            (tmp_path / "model" / "half").chmod(0o644)
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert mode(tmp_path / "model" / "half") == 0o600


def test_a_runs_folder_and_record_are_private_and_where_runs_lie_is_the_users(tmp_path):
    before = os.umask(0)
    try:
        folder = RunFolder.create(tmp_path / "runs" / "first", {"name": "first"})
        LiveFile(folder.path).look(lambda: LiveView(1.0))
    finally:
        os.umask(before)
    assert (mode(tmp_path / "runs"), mode(folder.path)) == (0o777, 0o700)
    assert {path.name: mode(path) for path in folder.path.iterdir()} == {
        "config.json": 0o600, "run.json": 0o600, "live.json": 0o600,
    }  # fmt: skip


def test_an_empty_folder_that_was_there_is_closed_to_others_when_a_run_begins_in_it(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first").chmod(0o777)
    assert mode(RunFolder.create(tmp_path / "first", {}).path) == 0o700
