"""Saving beside the training: one at a time, errors told once, no wait without an end."""

import threading

import pytest
from tests.record.faulty_disk import QuickDisk

from proa import ManifestRow
from proa.record.checkpoints import BackgroundSaver, CheckpointError, CheckpointManager

DEADLINE = 60.0


class Gate:
    """A writer that waits until it is let through."""

    def __init__(self):
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self, folder):
        self.entered.set()
        assert self.open.wait(DEADLINE)
        write(folder)


def write(folder):
    (folder / "state").mkdir()
    (folder / "state" / "a").write_bytes(b"x")


def fail(folder):
    raise ZeroDivisionError("mine")


def row(step):
    return ManifestRow(f"step_{step}", step - 1, 0, step=step)


@pytest.fixture
def manager(tmp_path):
    return CheckpointManager(tmp_path, disk=QuickDisk())


def test_a_save_returns_at_once_and_its_row_is_told_of_when_it_is_on_the_disk(manager):
    saver, gate = BackgroundSaver(manager), Gate()
    saver.save(row(2), gate)
    assert gate.entered.wait(DEADLINE)
    assert saver.finished() == []
    assert manager.rows == []
    gate.open.set()
    saver.drain(DEADLINE)
    assert saver.finished() == manager.rows
    assert [one.name for one in manager.rows] == ["step_2"]
    assert saver.finished() == []


def test_a_second_save_waits_for_the_first(manager):
    saver, gate = BackgroundSaver(manager), Gate()
    saver.save(row(2), gate)
    assert gate.entered.wait(DEADLINE)
    second = threading.Thread(target=saver.save, args=(row(4), write))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    gate.open.set()
    second.join(DEADLINE)
    saver.drain()
    assert [one.name for one in saver.finished()] == ["step_2", "step_4"]


def test_a_wait_that_is_too_long_ends_with_the_reason(manager):
    saver, gate = BackgroundSaver(manager, wait_seconds=0.05), Gate()
    saver.save(row(2), gate)
    for wait in (lambda: saver.drain(0.05), saver.drain, lambda: saver.save(row(4), write)):
        with pytest.raises(CheckpointError, match=r"step_2 is still being written after 0\.05 s"):
            wait()
    gate.open.set()
    saver.drain(DEADLINE)
    assert [one.name for one in saver.finished()] == ["step_2"]


@pytest.mark.parametrize("ask", ["finished", "save", "drain"])
def test_an_error_in_the_background_is_raised_once_by_whoever_asks_next(ask, manager):
    saver = BackgroundSaver(manager)
    saver.save(row(2), fail)
    saver._thread.join(DEADLINE)
    with pytest.raises(ZeroDivisionError, match="mine"):
        {"finished": saver.finished, "drain": saver.drain, "save": lambda: saver.save(row(4), write)}[ask]()
    assert saver.finished() == []
    saver.save(row(6), write)
    saver.drain(DEADLINE)
    assert [one.name for one in saver.finished()] == ["step_6"] == [one.name for one in manager.rows]


def test_what_else_writes_waits_for_a_save_under_way(manager):
    manager.save(row(2), write)
    saver, gate = BackgroundSaver(manager), Gate()
    saver.save(row(4), gate)
    assert gate.entered.wait(DEADLINE)
    other = threading.Thread(target=manager.mark_final, args=("step_2",))
    other.start()
    other.join(0.1)
    assert other.is_alive()
    gate.open.set()
    other.join(DEADLINE)
    saver.drain(DEADLINE)
    for one in manager.rows:
        manager.verify(one)


def test_draining_where_nothing_was_saved_returns(manager):
    BackgroundSaver(manager).drain(0.0)


def test_others_can_be_removed_while_one_is_written(manager):
    manager.save(row(1), write)
    manager.save(row(2), write)
    saver, gate = BackgroundSaver(manager), Gate()
    saver.save(row(3), gate)
    assert gate.entered.wait(DEADLINE)
    manager.remove(manager.row("step_1"))  # does not wait for the save, and leaves its files alone
    assert [one.name for one in manager.rows] == ["step_2"]
    gate.open.set()
    saver.drain(DEADLINE)
    assert [one.name for one in manager.rows] == ["step_2", "step_3"]
    manager.verify(manager.row("step_3"))
