"""Uploading checkpoints while a run trains: nothing waits for it, and nothing of it can end the run."""

import json
import os
import re
import threading

import fsspec
import pytest
from tests.small import MODEL

from proa import Callback, CheckpointManager
from proa.callbacks import CheckpointUpload, build_callback
from proa.cli.main import main
from proa.errors import CallbackConfigError, SettingError
from proa.recipes import sft
from proa.record.stores import AddressError, FolderStore, open_store
from proa.record.uploaded_run import read_rows

DEADLINE = 60.0
SETTINGS = {
    "name": "run", "total_steps": 3, "train_batch_size": 4, "model": {"config": MODEL},
    "task": {"source": "sort_digits", "count": 8}, "checkpoint": {"save_every": 1, "keep": 1},
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(CheckpointUpload, "first_delay", 0.001)
    yield
    fsspec.filesystem("memory").store.clear()


def trained(tmp_path, *callbacks, **changes):
    sft(**SETTINGS | changes, output_dir=tmp_path, callbacks=list(callbacks))
    return json.loads((tmp_path / (SETTINGS | changes)["name"] / "run.json").read_text())


def names(address):
    return [row.name for row in read_rows(open_store(address))]


class AtLastStep(Callback):
    """Opens a gate after the last step: what waits for it has waited through all of training."""

    def __init__(self, gate):
        self.gate = gate

    def on_train_end(self, state, artifacts):
        self.gate.set()


def held_up(monkeypatch, gate, name="checkpoints/"):
    """Have uploads of checkpoints wait for the gate."""
    real = FolderStore.write

    def write(self, path, content):
        if name in path:
            assert gate.wait(DEADLINE)
        real(self, path, content)

    monkeypatch.setattr(FolderStore, "write", write)


@pytest.mark.parametrize("kind", ["folder", "fsspec"])
def test_each_checkpoint_is_copied_and_the_last_one_is_final(kind, tmp_path):
    to = tmp_path / "copies" if kind == "folder" else f"memory://{tmp_path.name}"
    header = trained(tmp_path / "runs", CheckpointUpload(to))
    rows = read_rows(open_store(f"{to}/run"))
    assert [(row.name, row.final) for row in rows] == [("step_2", False), ("step_3", True)]
    assert rows[-1].digests == CheckpointManager(tmp_path / "runs" / "run").final().digests
    assert header["callback_errors"] == {}
    assert not (tmp_path / "runs" / "run" / ".uploads").exists()


def test_training_does_not_wait_and_pruned_checkpoints_are_uploaded_all_the_same(tmp_path, monkeypatch):
    gate = threading.Event()
    held_up(monkeypatch, gate)
    header = trained(tmp_path / "runs", CheckpointUpload(tmp_path / "copies", keep=None), AtLastStep(gate))
    assert header["callback_errors"] == {}
    assert names(tmp_path / "copies" / "run") == ["step_1", "step_2", "step_3"]
    assert [row.name for row in CheckpointManager(tmp_path / "runs" / "run").rows] == ["step_3"]
    for row in CheckpointManager(tmp_path / "copies" / "run").rows:
        CheckpointManager(tmp_path / "copies" / "run").verify(row)


@pytest.mark.parametrize("keep", [1, 2])
def test_those_that_would_be_pruned_there_are_skipped_and_the_newest_arrive(keep, tmp_path, monkeypatch, caplog):
    gate = threading.Event()
    held_up(monkeypatch, gate)
    upload = CheckpointUpload(tmp_path / "copies", keep=keep)
    header = trained(tmp_path / "runs", upload, AtLastStep(gate), total_steps=5)
    assert header["callback_errors"] == {}
    assert names(tmp_path / "copies" / "run") == ["step_4", "step_5"][-keep:]
    assert re.search(r"the upload of checkpoint step_\d is skipped, because newer ones are waiting", caplog.text)


def test_the_end_waits_for_a_while_only(tmp_path, monkeypatch, caplog):
    gate = threading.Event()
    held_up(monkeypatch, gate)
    header = trained(tmp_path / "runs", CheckpointUpload(tmp_path / "copies", drain=0.05), total_steps=1)
    gate.set()
    assert (header["status"], header["callback_errors"]) == ("completed", {"CheckpointUpload": 2})
    assert "the upload of checkpoint step_1 was not done 0.05 s after the end of training" in caplog.text


def test_what_fails_for_a_while_is_tried_again(tmp_path, monkeypatch):
    real, failures = FolderStore.write, iter(range(3))

    def write(self, path, content):
        if "checkpoints/" in path and next(failures, None) is not None:
            raise AddressError("down")
        real(self, path, content)

    monkeypatch.setattr(FolderStore, "write", write)
    assert trained(tmp_path / "runs", CheckpointUpload(tmp_path / "copies"))["callback_errors"] == {}
    assert names(tmp_path / "copies" / "run") == ["step_2", "step_3"]


def test_what_fails_for_good_is_counted_and_the_run_ends_well(tmp_path, monkeypatch, caplog):
    def write(self, path, content):
        raise PermissionError(f"{path}: nobody may write here")

    monkeypatch.setattr(FolderStore, "write", write)
    header = trained(tmp_path / "runs", CheckpointUpload(tmp_path / "copies", keep=None, timeout=0.05))
    assert (header["status"], header["callback_errors"]) == ("completed", {"CheckpointUpload": 4})  # and the end
    assert "copies/run cannot be used yet: .upload.json.new: nobody may write here" in caplog.text
    assert "upload: the upload of checkpoint step_1 failed" in caplog.text
    assert header["first_callback_errors"]["CheckpointUpload"].startswith("the upload of checkpoint step_1 failed: ")


def test_the_final_one_alone(tmp_path):
    trained(tmp_path / "runs", CheckpointUpload(tmp_path / "copies", final_only=True))
    assert names(tmp_path / "copies" / "run") == ["step_3"]


def test_the_model_alone(tmp_path):
    trained(tmp_path / "runs", CheckpointUpload(tmp_path / "copies", what="sampler", keep=1))
    (row,) = CheckpointManager(tmp_path / "copies" / "run").rows
    assert row.state_path is None
    assert sorted(path.name for path in CheckpointManager(tmp_path / "copies" / "run").path(row).iterdir()) == ["model"]


def test_a_run_that_fails_has_its_checkpoints_uploaded(tmp_path):
    class Fails(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            if step_idx == 2:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trained(tmp_path / "runs", CheckpointUpload(tmp_path / "copies"), Fails())
    assert names(tmp_path / "copies" / "run") == ["step_1", "step_2"]


def test_one_object_serves_one_run_after_the_other(tmp_path):
    upload = CheckpointUpload(tmp_path / "copies")
    trained(tmp_path / "runs", upload)
    trained(tmp_path / "runs", upload, name="second", total_steps=1)
    assert names(tmp_path / "copies" / "run") == ["step_2", "step_3"]
    assert names(tmp_path / "copies" / "second") == ["step_1"]


def test_another_run_of_the_same_name_is_refused_before_it_trains(tmp_path):
    trained(tmp_path / "runs", CheckpointUpload(tmp_path / "copies"))
    before = open_store(tmp_path / "copies").sizes()
    with pytest.raises(CallbackConfigError, match="has the checkpoints of another run of the same name"):
        trained(tmp_path / "other", CheckpointUpload(tmp_path / "copies"))
    assert open_store(tmp_path / "copies").sizes() == before


def test_the_runs_own_folder_is_refused(tmp_path):
    with pytest.raises(CallbackConfigError, match="is not apart from the run's own folder"):
        trained(tmp_path / "runs", CheckpointUpload(tmp_path / "runs"))


def test_addresses_are_shown_without_secrets_and_may_refer_to_the_environment(tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.setenv("BUCKET_OF_MINE", f"memory://{tmp_path.name}")

    def refuse(*args, **kwargs):
        raise PermissionError("403 for planted-password")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "find", refuse)
    params = [
        {"to": "${BUCKET_OF_MINE}", "timeout": 0.01},
        {"to": "memory://me:planted-password@there", "options": {"secret": "planted-option"}, "timeout": 0.01},
    ]
    callbacks = [{"kind": "upload", "params": one} for one in params]
    settings = SETTINGS | {"total_steps": 1, "algorithm": "sft", "output_dir": str(tmp_path), "callbacks": callbacks}
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    assert main(["train", str(tmp_path / "run.yaml")]) == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    said = capsys.readouterr()
    for text in [caplog.text, said.out, said.err, *(path.read_bytes().decode("latin-1") for path in files)]:
        assert "planted" not in text
    assert "memory://REDACTED@there/run cannot be used yet" in caplog.text
    written = json.loads((tmp_path / "run" / "config.json").read_text())["callbacks"]
    assert written[0]["params"]["to"] == "${BUCKET_OF_MINE}"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["callback_errors"] == {
        "CheckpointUpload": 2, "CheckpointUpload#2": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"what": "state"}, "what must be both or sampler, not 'state'. A run resumes from model and state together"),
        ({"keep": 0}, "keep must be at least 1, or null for all"),
        ({"drain": -1}, "drain must be above 0 seconds"),
        ({"to": "s4://bucket"}, "s4://bucket cannot be used: Protocol not known: s4"),
        ({"to": "${NO_SUCH_VARIABLE}/x"}, "to refers to the environment variable NO_SUCH_VARIABLE, which is not set"),
        ({"options": {"key": "x"}}, "options are for fsspec addresses"),
        ({"too": "x"}, "no parameter 'too'; did you mean 'to'"),
    ],
)
def test_mistakes_are_found_before_the_run_starts(params, words):
    with pytest.raises((CallbackConfigError, SettingError), match=words):
        build_callback({"kind": "upload", "params": {"to": "somewhere", **params}})
