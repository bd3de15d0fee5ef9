"""Which checkpoints there are, which are kept, and what is said of one that is not whole."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.record.faulty_disk import QuickDisk, inside

from proa import ManifestRow
from proa.errors import SettingError
from proa.record.checkpoints import CheckpointError, CheckpointManager, UnknownCheckpointError

OLD_MANIFEST = Path(__file__).parent / "fixtures" / "manifest_of_0_1.jsonl"


def row(step: int, **more) -> ManifestRow:
    return ManifestRow(more.pop("name", f"step_{step}"), step - 1, 0, step=step, **more)


def write(folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "state" / "state.json").write_text("{}")
    (folder / "model" / "deep").mkdir(parents=True)
    (folder / "model" / "deep" / "weights").write_bytes(b"abc")


def manager_of(run: Path, **settings) -> CheckpointManager:
    return CheckpointManager(run, disk=QuickDisk(), **settings)


def saved(run: Path, *rows: ManifestRow, **settings) -> CheckpointManager:
    manager = manager_of(run, **settings)
    for one in rows:
        manager.save(one, write)
    return manager


def names(manager: CheckpointManager) -> list[str]:
    return [one.name for one in manager.rows]


def folders(run: Path) -> list[str]:
    return inside(run / "checkpoints")


class CountingDisk(QuickDisk):
    """Counts the bytes that are read of the manifest."""

    def __init__(self) -> None:
        self.bytes_read = 0

    def chunks(self, path):
        for chunk in super().chunks(path):
            self.bytes_read += len(chunk) if path.suffix == ".jsonl" else 0
            yield chunk


def test_a_save_costs_the_same_however_many_there_were_before(tmp_path):
    """The manifest names every checkpoint that there ever was: it is not read again for each new one."""
    disk = CountingDisk()
    manager = CheckpointManager(tmp_path, keep_last=2, keep_best=("reward", "max"), disk=disk)
    read = []
    for step in range(1, 21):
        manager.save(row(step, metrics={"reward": -step}), write)
        read.append(disk.bytes_read)
    assert read[-1] == read[0]
    assert manager.rows == CheckpointManager(tmp_path).rows
    assert names(manager) == ["step_1", "step_19", "step_20"]


def test_what_somebody_else_wrote_into_the_manifest_is_seen(tmp_path):
    manager, other = saved(tmp_path, row(1)), manager_of(tmp_path)
    assert names(other) == ["step_1"]
    other.save(row(2), write)
    assert names(manager) == ["step_1", "step_2"]
    (tmp_path / "checkpoints.jsonl").unlink()
    assert names(manager) == names(other) == []


def test_rows_that_were_asked_for_do_not_change_with_later_ones(tmp_path):
    manager = saved(tmp_path, row(1, final=True))
    asked = manager.rows
    manager.save(row(2), write)
    assert (asked[0].final, manager.rows[0].final) == (True, False)


# What a save leaves.


def test_a_saved_row_names_its_parts_with_sizes_and_digests(tmp_path):
    given = row(4, policy_version=2, metrics={"reward": 0.5}, extra={"weather": "fine"})
    returned = CheckpointManager(tmp_path).save(given, write)
    assert returned == CheckpointManager(tmp_path).row("step_4")
    folder = tmp_path / "checkpoints" / "step_4"
    assert (returned.state_path, returned.sampler_path) == (str(folder / "state"), str(folder / "model"))
    assert returned.sizes == {"model/deep/weights": 3, "state/state.json": 2}
    assert returned.digests["model/deep/weights"] == hashlib.sha256(b"abc").hexdigest()
    assert (returned.metrics, returned.extra) == ({"reward": 0.5}, {"weather": "fine"})
    assert given.digests == {}


def test_a_part_that_was_not_written_has_no_path(tmp_path):
    def only_a_model(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_bytes(b"abc")

    returned = manager_of(tmp_path).save(row(4), only_a_model)
    assert (returned.state_path, returned.sampler_path) == (None, str(tmp_path / "checkpoints" / "step_4" / "model"))
    manager_of(tmp_path).verify(returned)


def test_a_checkpoint_with_nothing_in_it_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="step_4 is empty"):
        manager_of(tmp_path).save(row(4), lambda folder: (folder / "model").mkdir())
    assert folders(tmp_path) == []


def test_all_that_is_written_is_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        saved(tmp_path, row(4))
    finally:
        os.umask(before)
    for path in (tmp_path / "checkpoints", *tmp_path.rglob("checkpoints/**/*"), tmp_path / "checkpoints.jsonl"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_file_that_reads_back_otherwise_is_refused(tmp_path):
    class Flipping(QuickDisk):
        """Once a folder has its name, the first byte of what is read is another."""

        renamed = False

        def rename(self, old, new):
            super().rename(old, new)
            self.renamed = True

        def read(self, descriptor):
            piece = super().read(descriptor)
            return bytes([piece[0] ^ 1]) + piece[1:] if piece and self.renamed else piece

    with pytest.raises(CheckpointError, match="does not read back as it was written"):
        CheckpointManager(tmp_path, disk=Flipping()).save(row(4), write)
    assert folders(tmp_path) == []
    assert names(manager_of(tmp_path)) == []


@pytest.mark.parametrize("length", [0, 5, 20, 60, -1])
def test_tensors_that_a_writer_cut_short_without_a_word_are_refused(length, tmp_path):
    def cut_short(folder: Path) -> None:
        import numpy as np
        from safetensors.numpy import save_file

        (folder / "model").mkdir()
        save_file({"a": np.zeros(4), "b": np.zeros(1)}, folder / "model" / "model.safetensors")
        size = (folder / "model" / "model.safetensors").stat().st_size
        os.truncate(folder / "model" / "model.safetensors", length % size)

    with pytest.raises(CheckpointError, match=r"model\.safetensors is incomplete"):
        manager_of(tmp_path).save(row(4), cut_short)


def test_a_link_among_the_files_is_refused(tmp_path):
    def with_a_link(folder: Path) -> None:
        write(folder)
        (folder / "model" / "more").symlink_to("/etc/passwd")

    with pytest.raises(CheckpointError, match="more is a link"):
        manager_of(tmp_path).save(row(4), with_a_link)


# Names.


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "../x", "/x", ".new-a", "a..b", "step 4", "a\n", "a~2", "-a", "é", "x" * 300, "a\0"]
)
def test_a_name_that_could_lead_elsewhere_is_refused(name, tmp_path, caplog):
    with pytest.raises(CheckpointError, match="cannot name a checkpoint"):
        manager_of(tmp_path).save(row(4, name=name), write)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "checkpoints.jsonl").write_text(json.dumps(row(4, name=name).as_dict()) + "\n")
    assert manager_of(tmp_path).rows == []
    assert "line 1 cannot be read and is ignored: " in caplog.text


def test_a_name_is_not_given_twice(tmp_path):
    manager = saved(tmp_path, row(4))
    with pytest.raises(CheckpointError, match="checkpoint step_4 already exists"):
        manager.save(row(4), write)
    with pytest.raises(CheckpointError, match="checkpoint step_4 already exists, of step 4"):
        manager_of(tmp_path).save(row(5, name="step_4"), write)


def test_the_same_step_after_a_resume_replaces_the_old_one(tmp_path):
    saved(tmp_path, row(2), row(4), row(6))
    again = manager_of(tmp_path).save(row(4, metrics={"again": 1}), write)
    manager = manager_of(tmp_path)
    assert names(manager) == ["step_2", "step_6", "step_4"]
    assert manager.latest() == again
    manager.verify(again)
    assert manager.path(again).name == "step_4~2"
    assert folders(tmp_path) == ["step_2", "step_4~2", "step_6"]
    third = manager_of(tmp_path).save(row(4), write)
    assert third.state_path == str(tmp_path / "checkpoints" / "step_4" / "state")
    assert folders(tmp_path) == ["step_2", "step_4", "step_6"]


def test_a_run_that_went_on_has_another_final(tmp_path):
    saved(tmp_path, row(4, name="final", final=True))
    saved(tmp_path, row(8, name="final", final=True))
    assert [(one.name, one.step, one.final) for one in manager_of(tmp_path).rows] == [("final", 8, True)]
    with pytest.raises(CheckpointError, match="checkpoint final already exists, of step 8"):
        saved(tmp_path, row(6, name="final", final=True))


def test_a_row_that_json_cannot_say_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(CheckpointError, match="step_4: its row must hold plain JSON values"):
        manager_of(tmp_path).save(row(4, metrics={"loss": object()}), write)
    with pytest.raises(CheckpointError, match="the key removed is reserved"):
        manager_of(tmp_path).save(row(4, extra={"removed": True}), write)
    assert list(tmp_path.iterdir()) == []


def test_a_row_may_have_a_metric_that_is_no_number(tmp_path):
    manager = saved(tmp_path, row(4, metrics={"loss": float("nan"), "list": (float("inf"), 1)}))
    assert manager.row("step_4").metrics == {"loss": "NaN", "list": ["Infinity", 1]}


# Paths.


def test_rows_have_absolute_paths_and_the_manifest_relative_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    manager = saved(Path("run"), row(2), row(4), row(6))
    manager.mark_final("step_6")
    rows = [*manager.rows, *manager.history, manager.latest(), manager.final(), *manager.forget_after(4)]
    for one in rows:
        assert one.state_path == str(tmp_path / "run" / "checkpoints" / one.name / "state")
        assert one.sampler_path == str(tmp_path / "run" / "checkpoints" / one.name / "model")
    lines = [json.loads(line) for line in Path("run/checkpoints.jsonl").read_text().splitlines()]
    paths = {line["state_path"] for line in lines if "removed" not in line}
    assert paths == {f"checkpoints/step_{step}/state" for step in (2, 4, 6)}


def test_a_moved_run_has_the_paths_of_its_new_place(tmp_path):
    (tmp_path / "old").mkdir()
    before = saved(tmp_path / "old", row(2)).latest()
    (tmp_path / "old").rename(tmp_path / "new")
    manager = manager_of(tmp_path / "new")
    assert manager.latest().state_path == str(tmp_path / "new" / "checkpoints" / "step_2" / "state")
    manager.verify(manager.latest())
    with pytest.raises(CheckpointError, match="which is not in checkpoints/step_2"):
        manager.verify(before)


def test_a_folder_that_is_reached_by_a_link_has_the_same_rows(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    asked = saved(tmp_path / "run", row(2), row(4)).row("step_2")
    linked = manager_of(tmp_path / "link")
    linked.verify(asked)
    linked.remove(asked)
    assert names(linked) == ["step_4"]


# Removing.


def test_a_removed_checkpoint_is_gone_from_the_manifest_and_from_the_disk(tmp_path):
    manager = saved(tmp_path, row(2), row(4), row(6))
    manager.remove(manager.row("step_4"))
    assert names(manager) == names(manager_of(tmp_path)) == ["step_2", "step_6"]
    assert folders(tmp_path) == ["step_2", "step_6"]
    assert [one.name for one in manager.history] == ["step_2", "step_4", "step_6"]
    manager.verify(manager.row("step_6"))


def test_the_newest_one_is_removed_only_if_that_is_said(tmp_path):
    manager = saved(tmp_path, row(2), row(4))
    with pytest.raises(CheckpointError, match=r"step_4 is the newest one.*even_newest=True"):
        manager.remove(manager.latest())
    assert folders(tmp_path) == ["step_2", "step_4"]
    manager.remove(manager.latest(), even_newest=True)
    assert names(manager) == folders(tmp_path) == ["step_2"]


def test_one_without_a_state_is_not_what_a_run_resumes_from(tmp_path):
    def only_a_model(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_bytes(b"abc")

    manager = saved(tmp_path, row(2))
    manager.save(row(4), only_a_model)
    with pytest.raises(CheckpointError, match="step_2 is the newest one"):
        manager.remove(manager.row("step_2"))
    manager.remove(manager.row("step_4"))
    assert names(manager) == ["step_2"]


def test_what_cannot_be_removed_is_said(tmp_path):
    for folder in ("run", "other"):
        (tmp_path / folder).mkdir()
    manager = saved(tmp_path / "run", row(2), row(4))
    foreign = saved(tmp_path / "other", row(2), row(4)).row("step_2")
    with pytest.raises(UnknownCheckpointError, match=f"is it a row of another run than {tmp_path / 'run'}"):
        manager.remove(foreign)
    with pytest.raises(UnknownCheckpointError, match=r"no checkpoint step_3.*known: step_2, step_4"):
        manager.remove(row(3, state_path="checkpoints/step_3/state"))
    old = manager.row("step_2")
    manager.remove(old)
    with pytest.raises(UnknownCheckpointError, match=r"step_2 of .*run was removed already"):
        manager.remove(old)
    replaced = manager.row("step_4")
    saved(tmp_path / "run", row(4), row(6))
    with pytest.raises(UnknownCheckpointError, match=r"step_4 of .*run was replaced by a newer one"):
        manager.remove(replaced)
    assert names(manager) == ["step_4", "step_6"]


def test_removed_ones_do_not_count_as_kept(tmp_path):
    manager = saved(tmp_path, row(1), row(2), keep_last=2)
    manager.remove(manager.row("step_1"))
    for step in (3, 4):
        manager.save(row(step), write)
    assert names(manager) == ["step_3", "step_4"]
    manager.remove(manager.row("step_3"))
    manager.save(row(5), write)
    assert names(manager) == ["step_4", "step_5"]


def test_files_that_cannot_be_removed_are_reported_and_go_with_the_next_save(tmp_path, caplog):
    class Stubborn(QuickDisk):
        def remove_tree(self, path):
            raise PermissionError(f"{path} is protected")

    saved(tmp_path, row(2), row(4))
    stubborn = CheckpointManager(tmp_path, disk=Stubborn())
    stubborn.remove(stubborn.row("step_2"))
    assert "step_2 is not a checkpoint any more and cannot be removed" in caplog.text
    assert names(stubborn) == ["step_4"]
    saved(tmp_path, row(6))
    assert folders(tmp_path) == ["step_4", "step_6"]


def test_another_manager_may_remove_at_the_moment_that_one_saves(tmp_path):
    """As on Ray: a trainer saves in its process, a hook in the driver removes. No line of either is lost."""
    appending, removed = threading.Event(), threading.Event()

    class Slow(QuickDisk):
        """Gives the other manager time between reading the manifest's length and writing after it."""

        def append(self, path, data, after):
            appending.set()
            removed.wait(0.3)  # in vain: the other one waits for this one
            super().append(path, data, after)

    def remove() -> None:
        assert appending.wait(60)
        hook = manager_of(tmp_path)
        hook.remove(hook.row("step_1"))
        removed.set()

    saved(tmp_path, row(1), row(2))
    removing = threading.Thread(target=remove)
    removing.start()
    CheckpointManager(tmp_path, disk=Slow()).save(row(3), write)
    removing.join()
    assert names(manager_of(tmp_path)) == folders(tmp_path) == ["step_2", "step_3"]
    assert [one.name for one in manager_of(tmp_path).history] == ["step_1", "step_2", "step_3"]


# Which one.


def test_the_final_row_is_final_only_until_the_run_goes_on(tmp_path):
    manager = saved(tmp_path, row(2), row(4))
    assert manager.final() is None
    assert manager.mark_final("step_4", {"exact": 0.5}).final
    assert manager.final() == manager.row("step_4") == manager.latest()
    assert manager.row("step_4").metrics == {"exact": 0.5}
    saved(tmp_path, row(6))
    assert manager.final() is None
    assert [one.final for one in manager.rows] == [False, False, False]


def test_one_row_is_final_at_a_time_and_keeps_its_place(tmp_path):
    manager = saved(tmp_path, row(2), row(4))
    manager.mark_final("step_4")
    manager.mark_final("step_2")
    assert [(one.name, one.final) for one in manager.rows] == [("step_2", True), ("step_4", False)]


def test_a_checkpoint_that_is_not_there_cannot_be_final(tmp_path):
    manager = saved(tmp_path, row(4))
    with pytest.raises(CheckpointError, match=r"no checkpoint step_5.*step_4"):
        manager.mark_final("step_5")


def test_what_json_cannot_say_is_refused_of_a_final_row_too(tmp_path):
    manager = saved(tmp_path, row(4))
    with pytest.raises(CheckpointError, match="step_4: its row must hold plain JSON values"):
        manager.mark_final("step_4", {"loss": object()})
    assert manager.final() is None


def test_a_nan_that_somebody_else_wrote_is_never_best(tmp_path):
    nan = json.dumps(row(1, metrics={"reward": float("nan")}).as_dict())
    (tmp_path / "checkpoints.jsonl").write_text(f"{nan}\n")
    assert saved(tmp_path, row(2, metrics={"reward": 0.5})).best("reward").name == "step_2"


def test_the_best_is_that_of_a_metric_and_nan_is_never_best(tmp_path):
    rewards = [0.5, float("nan"), 0.75, 0.75, 0.25]
    rows = [row(step, metrics={"reward": reward}) for step, reward in enumerate(rewards, start=1)]
    manager = saved(tmp_path, *rows, row(6))
    assert [found.name for mode in ("max", "min") if (found := manager.best("reward", mode))] == ["step_3", "step_5"]
    assert manager.best("rewards") is None
    with pytest.raises(SettingError, match="'most'"):
        manager.best("reward", "most")


def test_without_a_manifest_there_are_no_checkpoints(tmp_path):
    manager = manager_of(tmp_path / "nowhere")
    assert (manager.rows, manager.latest(), manager.final()) == ([], None, None)
    with pytest.raises(CheckpointError, match=r"no checkpoint to resume from.*names none"):
        manager.newest_good()
    with pytest.raises(CheckpointError, match="the run's folder .* is gone"):
        manager.save(row(4), write)


# What is kept.


def test_the_last_ones_the_best_and_the_final_are_kept(tmp_path):
    rewards = {1: 0.1, 2: 0.9, 3: 0.3, 4: 0.4, 5: 0.5}
    rows = [row(step, metrics={"reward": reward}) for step, reward in rewards.items()]
    manager = saved(tmp_path, *rows, keep_last=2, keep_best=("reward", "max"))
    assert names(manager) == ["step_2", "step_4", "step_5"] == folders(tmp_path)
    manager = saved(tmp_path, row(6, metrics={"reward": 0.05}), keep_last=1, keep_best=("reward", "min"))
    assert names(manager) == ["step_6"] == folders(tmp_path)


def test_a_final_one_is_kept_while_it_is_final(tmp_path):
    manager = saved(tmp_path, row(1), row(2))
    manager.mark_final("step_1")
    assert names(saved(tmp_path, row(3, final=True), keep_last=1)) == ["step_3"]
    assert manager.final() == manager.row("step_3")


def test_without_a_number_all_are_kept(tmp_path):
    assert names(saved(tmp_path, row(1), row(2), row(3), keep_best=("reward", "max"))) == ["step_1", "step_2", "step_3"]


def test_none_is_dropped_before_the_next_one_is_written(tmp_path):
    saved(tmp_path, row(2), row(4))

    def fail(folder: Path) -> None:
        assert folders(tmp_path) == [".new-step_6", "step_2", "step_4"]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        manager_of(tmp_path, keep_last=1).save(row(6), fail)
    assert folders(tmp_path) == ["step_2", "step_4"] == names(manager_of(tmp_path))


@pytest.mark.parametrize("settings", [{"keep_last": 0}, {"keep_best": ("reward", "most")}])
def test_settings_that_keep_nothing_are_refused(settings, tmp_path):
    with pytest.raises(SettingError):
        CheckpointManager(tmp_path, **settings)


def test_a_resumed_run_forgets_what_came_after(tmp_path):
    manager = saved(tmp_path, row(2), row(4), row(6))
    manager.mark_final("step_6")
    assert [one.name for one in manager.forget_after(2)] == ["step_4", "step_6"]
    assert names(manager_of(tmp_path)) == ["step_2"] == folders(tmp_path)
    saved(tmp_path, row(4))
    assert names(manager_of(tmp_path)) == ["step_2", "step_4"] == folders(tmp_path)


def test_a_run_that_goes_on_from_its_final_checkpoint_has_no_final_one(tmp_path):
    manager = saved(tmp_path, row(2), row(4))
    manager.mark_final("step_4")
    assert manager.forget_after(4) == []
    assert manager.final() is None
    assert names(manager) == ["step_2", "step_4"]


# Leftovers.


def with_leftovers(run: Path) -> None:
    saved(run, row(2))
    for name in (".new-step_4", "step_4", "step_2~2"):
        (run / "checkpoints" / name / "state").mkdir(parents=True)
    (run / "checkpoints" / "notes.txt").write_text("mine")
    (run / "checkpoints" / "my notes").mkdir()
    (run / "elsewhere").mkdir()
    (run / "checkpoints" / "linked").symlink_to(run / "elsewhere")


@pytest.mark.parametrize(
    "act",
    [
        lambda manager: manager.save(row(4), write),
        lambda manager: manager.mark_final("step_2"),
        lambda manager: manager.forget_after(2),
    ],
)
def test_whoever_writes_removes_what_a_crash_left_and_nothing_else(act, tmp_path, caplog):
    with_leftovers(tmp_path)
    act(manager_of(tmp_path))
    assert folders(tmp_path) == sorted({"linked", "my notes", "notes.txt", *names(manager_of(tmp_path))})
    assert (tmp_path / "elsewhere").is_dir()
    assert caplog.text == ""


def test_whoever_reads_changes_nothing(tmp_path):
    with_leftovers(tmp_path)
    with (tmp_path / "checkpoints.jsonl").open("a") as file:
        file.write('{"name": "ste')
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    manager = CheckpointManager(tmp_path, keep_last=1)
    manager.verify(manager.row("step_2"))
    assert (manager.newest_good()[0], manager.latest(), manager.best("a"), manager.final()) == (
        manager.row("step_2"), manager.row("step_2"), None, None,
    )  # fmt: skip
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# What is said of one that is not whole.


def flip(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


DAMAGE = {
    "model/deep/weights is missing": lambda folder: (folder / "model/deep/weights").unlink(),
    "state/state.json has 1 bytes instead of 2": lambda folder: os.truncate(folder / "state/state.json", 1),
    "state/state.json has the digest": lambda folder: flip(folder / "state/state.json"),
    "state/more is not in the row": lambda folder: (folder / "state/more").touch(),
    "step_4/state/state.json is a link": lambda folder: link(folder / "state/state.json"),
    "step_4/state is a link": lambda folder: link(folder / "state"),
    "checkpoints/step_4 is a link": link,
    "checkpoints is a link": lambda folder: link(folder.parent),
    "checkpoints/step_4 is missing": shutil.rmtree,
    "state/pipe is not a regular file": lambda folder: os.mkfifo(folder / "state/pipe"),
}


@pytest.mark.parametrize("words", DAMAGE)
def test_what_is_wrong_with_a_checkpoint_is_said(words, tmp_path):
    manager = saved(tmp_path, row(4))
    DAMAGE[words](tmp_path / "checkpoints" / "step_4")
    with pytest.raises(CheckpointError, match="checkpoint step_4") as caught:
        manager.verify(manager.row("step_4"))
    assert words in str(caught.value)


HOSTILE = {
    "names the path '../../x/state'": {"state_path": "../../x/state"},
    "names the path '/etc/state'": {"state_path": "/etc/state"},
    "names the path 'checkpoints/step_2/state'": {"state_path": "checkpoints/step_2/state"},
    "names the path 'checkpoints/../state'": {"state_path": "checkpoints/../state"},
    "names the path 'checkpoints/step_4/state/..'": {"state_path": "checkpoints/step_4/state/.."},
    "names two folders": {"state_path": "checkpoints/step_4~2/state"},
    "names no folder": {"state_path": None, "sampler_path": None},
    "'../../../etc/passwd' leaves the folder": {"digests": {"../../../etc/passwd": "0"}},
    "'/etc/passwd' leaves the folder": {"digests": {"/etc/passwd": "0"}},
    "names no files": {"digests": {}},
    "names model/ and no file in it": {"digests": {"state/state.json": "0"}},
    "its row has no size for it": {"sizes": {}},
}


@pytest.mark.parametrize("words", HOSTILE)
def test_a_row_that_leads_elsewhere_is_refused(words, tmp_path):
    manager = saved(tmp_path, row(2), row(4))
    hostile = ManifestRow.from_dict(manager.row("step_4").as_dict() | HOSTILE[words])
    with pytest.raises(CheckpointError) as caught:
        manager.verify(hostile)
    assert words in str(caught.value)


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="checkpoints is a link"):
        manager_of(run).save(row(4), write)
    (run / "checkpoints").unlink()
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step_4").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="step_4 is a link"):
        manager_of(run).save(row(4), write)
    (run / "checkpoints.jsonl").symlink_to(tmp_path / "elsewhere" / "manifest")
    with pytest.raises(CheckpointError, match=r"checkpoints\.jsonl is a link"):
        manager_of(run).save(row(6), write)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_manifest_that_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "checkpoints.jsonl")
    with pytest.raises(CheckpointError, match=r"checkpoints\.jsonl is not a regular file"):
        _ = manager_of(tmp_path).rows


def test_the_newest_good_one_is_found_and_the_others_are_explained(tmp_path):
    manager = saved(tmp_path, row(2), row(4), row(6))
    (tmp_path / "checkpoints/step_6/state/state.json").unlink()
    flip(tmp_path / "checkpoints/step_4/model/deep/weights")
    found, reasons = manager.newest_good()
    assert found.name == "step_2"
    assert len(reasons) == 2
    assert "step_6 does not match its row: state/state.json is missing" in reasons[0]
    assert "step_4 does not match its row: model/deep/weights has the digest" in reasons[1]
    shutil.rmtree(tmp_path / "checkpoints/step_2")
    with pytest.raises(CheckpointError, match=r"step_6.*missing.*step_4.*has the digest.*step_2 is missing"):
        manager.newest_good()


# The manifest.


@pytest.mark.parametrize(
    "torn", [b'{"name": "step_', b'{"name": "step_9", "batch": 8, "epoch": 0}', b"\0\0\0\0}", b"\xff"]
)
def test_a_torn_last_line_is_passed_over_and_cut_off(torn, tmp_path):
    manager = saved(tmp_path, row(2))
    with manager.manifest_path.open("ab") as file:
        file.write(torn)
    assert names(manager) == ["step_2"]
    saved(tmp_path, row(4))
    assert names(manager) == ["step_2", "step_4"]
    assert [json.loads(line)["name"] for line in manager.manifest_path.read_text().splitlines()] == ["step_2", "step_4"]


UNREADABLE = {
    '{"name": "st': "line 2 ",
    "\0\0\0\0}": "line 2 ",
    "[1]": "it holds a list",
    "{}": "it has no name",
    '{"name": "a", "epoch": 0}': "it has no batch",
    '{"name": "a", "batch": "b", "epoch": 0}': "batch cannot be 'b'",
    '{"name": 5}': "name cannot be 5",
    "[" * 100_000: "line 2 ",
}


def test_a_line_that_cannot_be_read_is_reported_and_costs_no_other_checkpoint(tmp_path, caplog):
    for number, (line, words) in enumerate(UNREADABLE.items()):
        run = tmp_path / str(number)
        run.mkdir()
        manager = saved(run, row(2), row(4))
        first, second = manager.manifest_path.read_text().splitlines()
        manager.manifest_path.write_text("\n".join([first, line, second, ""]))
        caplog.clear()
        assert names(manager) == names(manager) == ["step_2", "step_4"]
        assert [words in record.message for record in caplog.records] == [True]  # once
        assert "line 2 cannot be read and is ignored" in caplog.text
        saved(run, row(6))
        assert names(manager) == ["step_2", "step_4", "step_6"]
        assert line in manager.manifest_path.read_text().splitlines()  # somebody may be able to read it


def test_a_checkpoint_whose_line_cannot_be_read_is_not_removed(tmp_path, caplog):
    manager = saved(tmp_path, row(2), row(4))
    manager.manifest_path.write_text(manager.manifest_path.read_text().replace('"name": "step_4"', '"nam'))
    (tmp_path / "checkpoints" / ".new-step_5").mkdir()
    manager.forget_after(2)
    saved(tmp_path, row(6), row(8), keep_last=1)
    assert names(manager) == ["step_8"]
    assert folders(tmp_path) == ["step_4", "step_8"]  # what was pruned or half written is gone


def test_rows_of_an_older_version_are_read_and_written_as_they_are(tmp_path):
    shutil.copy(OLD_MANIFEST, tmp_path / "checkpoints.jsonl")
    manager = manager_of(tmp_path)
    assert [(one.name, one.step, one.final) for one in manager.rows] == [("step_4", 4, False), ("final", 5, True)]
    assert manager.row("step_4").extra == {"weather": {"wind": [1, 2]}}
    manager.mark_final("step_4")
    assert json.loads(manager.manifest_path.read_text().splitlines()[-1])["weather"] == {"wind": [1, 2]}
    with pytest.raises(CheckpointError, match=r"final.*step_4"):
        manager.newest_good()


def test_a_row_without_its_step_has_that_of_its_batch(tmp_path):
    (tmp_path / "checkpoints.jsonl").write_text(OLD_MANIFEST.read_text().splitlines()[0] + "\n")
    assert manager_of(tmp_path).row("step_2").step == 2


def test_rows_are_read_without_torch():
    code = (
        "import sys, proa.record.checkpoints, proa.record.state_files\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
