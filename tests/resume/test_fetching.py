"""A run that lost its machine continues from where its checkpoints were uploaded to, as if nothing had been."""

import json
import logging
import os
import shutil

import fsspec
import pytest
import torch
from tests.small import DETACHED, MODEL

from proa import Callback, CheckpointManager
from proa.callbacks import CheckpointUpload
from proa.cli.main import main
from proa.recipes import grpo, sft
from proa.record.checkpoints import CheckpointError
from proa.record.reading import RunNotFoundError
from proa.record.run_folder import RunFolderError
from proa.record.stores import AddressError, open_store
from proa.resume.fetching import RemoteRun

SETTINGS = {
    "name": "run", "total_steps": 5, "train_batch_size": 4, "model": {"config": MODEL},
    "task": {"source": "sort_digits", "count": 16}, "optimizer": {"learning_rate": 3e-3},
    "eval": [{"name": "held_out", "kind": "generate", "count": 2, "run_every": 1, "max_new_tokens": 4}],
    "checkpoint": {"save_every": 2},
}  # fmt: skip
WITH_REFERENCE = DETACHED | {
    "name": "run", "checkpoint": {"save_every": 2}, "algorithm": {"params": {"kl_coefficient": 0.1}},
    "warm_start": {"steps": 2, "batch_size": 8},
}  # fmt: skip


class Fails(Callback):
    """Fails in the last step of the first run."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, state, step_idx, batch, metrics):
        if state.resumed_from is None and step_idx == self.step:
            raise ZeroDivisionError


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing happened to."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    sft(**SETTINGS, output_dir=folder)
    return folder / "run"


@pytest.fixture(scope="module")
def uploaded(tmp_path_factory):
    """What a run left at an address that failed after its second checkpoint, and lost its folder."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("uploaded")
    with pytest.raises(ZeroDivisionError):
        sft(**SETTINGS, output_dir=folder / "runs", callbacks=[CheckpointUpload(folder / "copies"), Fails(4)])
    shutil.rmtree(folder / "runs")
    return folder / "copies" / "run"


@pytest.fixture
def address(uploaded, tmp_path):
    """The same, to do with as one likes."""
    shutil.copytree(uploaded, tmp_path / "copies" / "run")
    return tmp_path / "copies" / "run"


def header(run):
    return json.loads((run / "run.json").read_text())


def record(run):
    """What the run's files say, without times."""
    files = [(run / name).read_text().splitlines() for name in ("metrics.jsonl", "evals.jsonl")]
    rows = [[json.loads(line) for line in lines] for lines in files]
    timed = ("time", "seconds", "eval_seconds")
    return [[{k: v for k, v in row.items() if not k.endswith(timed)} for row in file] for file in rows]


def again(address, folder, **changes):
    return sft(**SETTINGS | changes, output_dir=folder, resume=address)


def tear(path):
    path.write_bytes(path.read_bytes()[:-1])


def test_it_ends_with_the_weights_and_the_record_of_a_run_that_was_never_interrupted(address, whole, tmp_path):
    state = again(str(address), tmp_path / "new")
    assert (state.resumed_from, state.global_step) == ("step_4", 5)
    run = tmp_path / "new" / "run"
    assert header(run)["weights_digest"] == header(whole)["weights_digest"]
    assert record(run) == record(whole)
    predictions = {path.relative_to(run) for path in run.rglob("evals/*/*.jsonl")}
    assert predictions == {path.relative_to(whole) for path in whole.rglob("evals/*/*.jsonl")}
    assert [row.name for row in CheckpointManager(run).rows] == ["step_4", "final"]
    assert "uploaded" not in CheckpointManager(run).row("step_4").extra


def test_a_reference_comes_along_and_uploads_continue(tmp_path):
    digests = {}
    for name, to in (("whole", "w"), ("lost", f"memory://{tmp_path.name}")):
        upload = CheckpointUpload(to if "://" in to else tmp_path / to)
        callbacks = [upload, *([Fails(3)] if name == "lost" else [])]
        try:
            grpo(**WITH_REFERENCE, output_dir=tmp_path / name, callbacks=callbacks)
        except ZeroDivisionError:
            shutil.rmtree(tmp_path / name)
            again = [CheckpointUpload(to)]
            grpo(**WITH_REFERENCE, output_dir=tmp_path / name, callbacks=again, resume=f"{to}/run")
        digests[name] = header(tmp_path / name / "run")["weights_digest"]
    assert digests["lost"] == digests["whole"]
    assert header(tmp_path / "lost" / "run")["resumed"][0]["checkpoint"] == "step_2"
    remote = RemoteRun.find(f"memory://{tmp_path.name}/run")
    assert [(row.name, row.final) for row in remote.rows] == [("step_2", False), ("step_4", True)]
    assert header(tmp_path / "lost" / "run")["callback_errors"] == {}
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("damage", ["missing", "torn", "emptied"])
def test_one_that_is_not_whole_is_passed_over_with_the_reason(damage, address, tmp_path, caplog):
    path = address / "checkpoints" / "step_4" / "model" / "model.safetensors"
    {"missing": path.unlink, "torn": lambda: tear(path), "emptied": lambda: path.write_bytes(b"")}[damage]()
    row = RemoteRun.find(address).fetch(tmp_path / "new")
    assert row.name == "step_2"
    assert "passed over: checkpoint step_4" in caplog.text
    assert [one.name for one in CheckpointManager(tmp_path / "new").rows] == ["step_2"]
    CheckpointManager(tmp_path / "new").verify(row)


def test_an_upload_that_was_cut_off_is_passed_over_and_said(address, tmp_path, caplog):
    shutil.copytree(address / "checkpoints" / "step_4", address / "checkpoints" / "step_6")
    assert RemoteRun.find(address).fetch(tmp_path / "new").name == "step_4"
    assert "checkpoints/step_6 is not whole: its upload was cut off" in caplog.text


def test_where_none_is_whole_nothing_is_left_here(address, tmp_path):
    for step in (2, 4):
        tear(address / "checkpoints" / f"step_{step}" / "state" / "run" / "state.json")
    with pytest.raises(CheckpointError, match=r"no whole checkpoint at .*step_4 does not match.*step_2 does not match"):
        RemoteRun.find(address).fetch(tmp_path / "new" / "run")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_named_one_is_fetched_or_the_known_ones_are_said(address, tmp_path):
    assert RemoteRun.find(address).fetch(tmp_path / "new", "step_2").name == "step_2"
    with pytest.raises(
        CheckpointError, match=r"has no checkpoint stp_4; did you mean 'step_4'\? \(known: step_2, step_4"
    ):
        RemoteRun.find(address).fetch(tmp_path / "other", "stp_4")


def test_a_damaged_record_is_reported_and_a_damaged_start_is_refused(address, tmp_path, caplog):
    path = address / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"loss", b"lost", 1))
    (address / "base").mkdir()
    (address / "base" / "weights").write_bytes(b"other")
    RemoteRun.find(address).fetch(tmp_path / "new")
    assert "metrics.jsonl is damaged: it is not the file that was uploaded; the run continues" in caplog.text
    text = (address / "checkpoints.jsonl").read_text()
    noted = '"files": {"base/weights": {"size": 5, "sha256": "0"}, '
    (address / "checkpoints.jsonl").write_text(text.replace('"files": {', noted))
    with pytest.raises(CheckpointError, match="base/weights is damaged.*the run needs the model that it began with"):
        RemoteRun.find(address).fetch(tmp_path / "other")


def test_a_folder_that_has_the_run_is_used_unless_it_is_behind_or_anothers(address, whole, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    RemoteRun.find(address).fetch(tmp_path / "new")
    assert RemoteRun.find(address).fetch(tmp_path / "new").name == "step_4"
    assert "has this run already: it continues there" in caplog.text
    CheckpointManager(tmp_path / "new").forget_after(2)
    with pytest.raises(RunFolderError, match="has this run, and is behind: its newest checkpoint is none"):
        RemoteRun.find(address).fetch(tmp_path / "new")
    shutil.copytree(whole, tmp_path / "whole")
    with pytest.raises(RunFolderError, match="was already used by another run"):
        RemoteRun.find(address).fetch(tmp_path / "whole")


def test_where_there_is_no_run_it_says_what_there_is(address, tmp_path, monkeypatch):
    with pytest.raises(RunNotFoundError, match="there is no run at .*copies: it has no config.json; runs there: run"):
        RemoteRun.find(address.parent)
    with pytest.raises(RunNotFoundError, match="there is no run at .*nowhere: it has no config.json$"):
        RemoteRun.find(tmp_path / "nowhere")
    with pytest.raises(RunNotFoundError, match="there is no run at memory://nowhere"):
        RemoteRun.find("memory://nowhere")
    (address / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is broken"):
        RemoteRun.find(address)


def test_what_has_no_state_cannot_be_resumed(address, tmp_path):
    for name, words in (("nothing", "it has no whole checkpoint"), ("sampler", "hold a model and no state")):
        shutil.rmtree(tmp_path / "copies" / name, ignore_errors=True)
        shutil.copytree(address, tmp_path / "copies" / name)
        path = tmp_path / "copies" / name / "checkpoints.jsonl"
        rows = [json.loads(line) | {"state_path": None} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) if name == "sampler" else "")
        with pytest.raises(CheckpointError, match=words):
            RemoteRun.find(path.parent).fetch(tmp_path / "new")


def test_an_address_that_fails_for_a_moment_is_asked_again(address, tmp_path, monkeypatch):
    store = open_store(address)
    real, failures = type(store).chunks, iter(range(2))

    def chunks(self, name):
        if next(failures, None) is not None:
            raise AddressError("down")
        return real(self, name)

    monkeypatch.setattr(type(store), "chunks", chunks)
    assert RemoteRun.find(address).fetch(tmp_path / "new").name == "step_4"


def test_a_hostile_row_leads_nowhere(address, tmp_path):
    path = address / "checkpoints.jsonl"
    row = json.loads(path.read_text().splitlines()[-1])
    row["digests"] = {"../../../escaped": "0"} | row["digests"]
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(CheckpointError, match="leaves the folder"):
        RemoteRun.find(address).fetch(tmp_path / "new")
    assert not list(tmp_path.rglob("escaped"))


def test_the_command_copies_resumes_and_says_so(address, whole, tmp_path, capsys):
    assert main(["resume", str(address), "--output_dir", str(tmp_path / "new")]) == 0
    said = capsys.readouterr()
    assert f"copying the run at {address} to {tmp_path / 'new' / 'run'}" in said.err
    assert "resuming from checkpoint step_4, after 4 steps" in said.out
    assert header(tmp_path / "new" / "run")["weights_digest"] == header(whole)["weights_digest"]
    assert header(address)["status"] == "running"  # what was uploaded stays as it was


def test_without_a_folder_the_run_continues_where_it_was(address, whole, tmp_path, monkeypatch, capsys):
    config = json.loads((address / "config.json").read_text())
    (address / "config.json").write_text(json.dumps(config | {"output_dir": "here"}))
    monkeypatch.chdir(tmp_path)
    assert main(["resume", str(address)]) == 0
    assert header(tmp_path / "here" / "run")["weights_digest"] == header(whole)["weights_digest"]


def test_a_plain_copy_of_a_run_continues_in_another_place_too(whole, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "copy")
    new = str(tmp_path / "new")
    assert main(["resume", str(tmp_path / "copy"), "--output-dir", new, "--checkpoint", "step_4"]) == 0
    assert header(tmp_path / "new" / "run")["weights_digest"] == header(whole)["weights_digest"]
    assert header(tmp_path / "copy") == header(whole)


def test_the_command_says_what_is_wrong(address, tmp_path, capsys):
    assert main(["resume", "memory://user:planted-password@nowhere"]) == 2
    assert capsys.readouterr().err == "there is no run at memory://REDACTED@nowhere: it has no config.json\n"
    assert main(["resume", "s4://nowhere"]) == 2
    assert "s4://nowhere" in capsys.readouterr().err
