"""The copy of a run at an address: a checkpoint is there whole, or it is not named."""

import json
import logging
import math
import time

import pytest
from tests.record.faulty_disk import QuickDisk

from proa import ManifestRow
from proa.record.checkpoints import CheckpointManager
from proa.record.durable import CheckpointError
from proa.record.state_files import write_state
from proa.record.stores import AddressError, FolderStore
from proa.record.uploaded_run import OtherRunError, RunIdentity, UploadedRun, read_rows

RUN, OTHER = RunIdentity(1.0, "2026-01-01T00:00:00"), RunIdentity(2.0, "2026-01-01T00:00:00")


class Store(FolderStore):
    """Keeps the names that were written; fails, or damages what it writes, at a name."""

    def __init__(self, folder):
        super().__init__(folder)
        self._disk = QuickDisk()
        self.written, self.fails_at, self.damages = [], None, None

    def write(self, name, content):
        if self.fails_at is not None and self.fails_at in name:
            raise AddressError("down")
        self.written.append(name)
        if self.damages is not None and self.damages in name:
            content = [b"".join(content).replace(b"{", b"(")]
        super().write(name, content)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    (folder / "evals" / "quiz").mkdir(parents=True)
    (folder / "base").mkdir()
    (folder / "base" / "weights").write_bytes(b"start")
    for name in ("config.json", "run.json"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "copy")


def saved(run, step, **more):
    """A checkpoint of that step in the run's folder, with a line of the record for each step."""
    lines = "".join(f'{{"step": {done}}}\n' for done in range(step))
    (run / "metrics.jsonl").write_text(lines)
    (run / "evals" / "quiz" / f"step_{step}.jsonl").write_text(f"{step}\n")

    def write(folder):
        write_state(folder / "state" / "run", {"record": {"metrics.jsonl": len(lines)}, "step": step})
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps({"step": step}))

    def write_all(folder):
        (folder / "state").mkdir()
        write(folder)

    return CheckpointManager(run, disk=QuickDisk()).save(
        ManifestRow(f"step_{step}", step - 1, 0, step=step, **more), write_all
    )


def uploaded(store, run, *rows, resumed=None, identity=RUN, **settings):
    copy = UploadedRun(store, **settings)
    copy.claim(identity, resumed)
    for row in rows:
        add(copy, run, row)
    return copy


def add(copy, run, row, until=math.inf):
    copy.add(row, CheckpointManager(run).path(row), run, until)


def names(store):
    return [row.name for row in read_rows(store)]


def test_the_copy_is_a_run_folder_whose_checkpoints_verify(run, store):
    uploaded(store, run, saved(run, 2), saved(run, 4))
    manager = CheckpointManager(store.folder)
    assert [row.name for row in manager.rows] == ["step_2", "step_4"]
    for row in manager.rows:
        manager.verify(row)
    assert (store.read("metrics.jsonl"), store.read("base/weights")) == ((run / "metrics.jsonl").read_bytes(), b"start")
    assert store.read("evals/quiz/step_2.jsonl") == b"2\n"
    needed = read_rows(store)[0].extra["uploaded"]["files"]
    assert needed["metrics.jsonl"]["size"] == len('{"step": 0}\n') * 2  # of the checkpoint, whatever came after
    assert set(needed) == {"metrics.jsonl", "base/weights"}


def test_a_checkpoint_is_named_last_and_files_that_do_not_change_are_written_once(run, store):
    copy = uploaded(store, run, saved(run, 2))
    assert store.written[0] == ".upload.json.new"
    assert store.written[-1] == ".checkpoints.jsonl.new"
    store.written.clear()
    add(copy, run, saved(run, 4))
    assert "base/weights" not in store.written
    assert [name for name in store.written if name.startswith("evals")] == ["evals/quiz/step_4.jsonl"]


@pytest.mark.parametrize(
    "name", ["step_4/model", "step_4/state", "metrics.jsonl", "run.json", "checkpoints.jsonl", "evals"]
)
def test_an_upload_that_fails_anywhere_is_not_named_and_may_be_tried_again(name, run, store):
    copy = uploaded(store, run, saved(run, 2))
    row, store.fails_at = saved(run, 4), name
    with pytest.raises(AddressError):
        add(copy, run, row)
    assert names(store) == ["step_2"]
    store.fails_at = None
    add(copy, run, row)
    assert names(store) == ["step_2", "step_4"]
    CheckpointManager(store.folder).verify(CheckpointManager(store.folder).latest())


def test_what_does_not_read_back_is_not_named(run, store):
    store.damages = "step_2/model/config.json"
    with pytest.raises(AddressError, match=r"step_2/model/config\.json does not read back as it was written"):
        uploaded(store, run, saved(run, 2))
    assert names(store) == []


def test_a_file_that_is_damaged_here_is_not_uploaded(run, store):
    row = saved(run, 2)
    (run / "checkpoints" / "step_2" / "model" / "config.json").write_text('{"step": 3}')
    with pytest.raises(CheckpointError, match=r"model/config\.json is not the file that its row names"):
        uploaded(store, run, row)
    assert names(store) == []


def test_its_time_may_be_over(run, store):
    copy = uploaded(store, run)
    with pytest.raises(TimeoutError):
        add(copy, run, saved(run, 2), until=time.monotonic() - 1)
    assert names(store) == []


def test_the_newest_are_kept(run, store):
    uploaded(store, run, *(saved(run, step) for step in (2, 4, 6)), keep=2)
    assert names(store) == ["step_4", "step_6"]
    assert sorted(path.name for path in (store.folder / "checkpoints").iterdir()) == ["step_4", "step_6"]


def test_one_that_is_there_gets_its_new_row_without_its_files(run, store):
    copy = uploaded(store, run, saved(run, 2), saved(run, 4), keep=2)
    final = CheckpointManager(run, disk=QuickDisk()).mark_final("step_4", {"exact": 0.5})
    store.written.clear()
    add(copy, run, final)
    assert not any(name.startswith("checkpoints/") for name in store.written)
    assert [(row.name, row.final, row.metrics) for row in read_rows(store)] == [
        ("step_2", False, {}), ("step_4", True, {"exact": 0.5}),
    ]  # fmt: skip


def test_a_model_alone_is_uploaded_as_such(run, store):
    uploaded(store, run, saved(run, 2), what="sampler")
    (row,) = CheckpointManager(store.folder).rows
    assert row.state_path is None
    CheckpointManager(store.folder).verify(row)
    assert not any("state" in name or name == "metrics.jsonl" for name in store.sizes())


def test_an_address_belongs_to_one_run(run, store):
    uploaded(store, run, saved(run, 2))
    before = store.sizes()
    with pytest.raises(OtherRunError, match="has the checkpoints of another run of the same name"):
        uploaded(store, run, identity=OTHER)
    assert store.sizes() == before


def test_a_folder_with_something_else_is_left_alone(run, store):
    store.write("precious.txt", [b"mine"])
    with pytest.raises(OtherRunError, match="is not empty, and what is there was not uploaded by this run"):
        uploaded(store, run)
    assert store.sizes() == {"precious.txt": 4}


def test_later_checkpoints_stay_until_a_resumed_run_has_a_new_one(run, store, caplog):
    uploaded(store, run, *(saved(run, step) for step in (2, 4, 6)))
    CheckpointManager(run, disk=QuickDisk()).forget_after(2)
    copy = uploaded(store, run, resumed=2)
    assert "has later checkpoints of this run than the one it resumes from (step_4, step_6)" in caplog.text
    assert names(store) == ["step_2", "step_4", "step_6"]
    add(copy, run, saved(run, 4, metrics={"again": 1}))
    assert names(store) == ["step_2", "step_4"]
    assert read_rows(store)[-1].metrics == {"again": 1}
    assert sorted(path.name for path in (store.folder / "checkpoints").iterdir()) == ["step_2", "step_4"]


def test_a_run_that_resumes_from_the_newest_says_nothing_and_goes_on(run, store, caplog):
    caplog.set_level(logging.WARNING)
    uploaded(store, run, saved(run, 2))
    store.written.clear()
    uploaded(store, run, CheckpointManager(run).latest(), saved(run, 4), resumed=2)
    assert names(store) == ["step_2", "step_4"]
    assert not any("step_2" in name for name in store.written)
    assert caplog.text == ""
