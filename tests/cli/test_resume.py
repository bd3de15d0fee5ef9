"""`proa resume`: words and exit codes for what goes on, and for what cannot."""

import errno
import json
import os
import shutil
from typing import ClassVar

import pytest
import torch
import yaml
from tests.small import MODEL

from proa import Callback
from proa.callbacks import registry
from proa.cli.main import main
from proa.recipes import sft

CONFIG = {
    "name": "run", "total_steps": 3, "train_batch_size": 8, "sampling": {"group_size": 2, "max_new_tokens": 4},
    "model": {"config": MODEL},
    "task": {"source": "sort_digits", "count": 32}, "reward": {"workers": 0}, "optimizer": {"learning_rate": 3e-3},
    "wait_timeout": 60.0, "checkpoint": {"save_every": 1, "keep": None},
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG | {"output_dir": str(folder)}))
    assert main(["train", str(folder / "run.yaml")]) == 0
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path):
    """A run of three steps that was cut off after its second checkpoint, in another place than it began."""
    shutil.copytree(finished, tmp_path / "moved")
    change(tmp_path / "moved" / "run.json", status="running")
    return tmp_path / "moved"


def change(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def header(run):
    return json.loads((run / "run.json").read_text())


def test_a_run_goes_on_where_it_lies_now_and_comes_to_the_same_weights(run, finished, capsys):
    assert main(["resume", str(run), "--checkpoint", "step_1"]) == 0
    assert header(run)["weights_digest"] == header(finished)["weights_digest"]
    assert header(run)["resumed"][-1]["checkpoint"] == "step_1"
    assert f"record: {run}" in capsys.readouterr().out


def test_what_does_not_change_the_result_may_change(run, finished, capsys, caplog):
    assert main(["resume", str(run), "--checkpoint", "step_1", "--makers", "2", "--checkpoint.keep", "1"]) == 0
    assert header(run)["weights_digest"] == header(finished)["weights_digest"]
    assert header(run)["resumed"][-1]["changes"]["makers"] == {"before": 1, "now": 2}
    assert "makers was 1 and is 2" in caplog.text


def test_a_complete_run_is_told_to_be_and_shown(finished, capsys):
    before = sorted((path, path.stat().st_mtime_ns) for path in finished.rglob("*"))
    assert main(["resume", str(finished)]) == 0
    said = capsys.readouterr()
    assert said.err == f"{finished} is complete: there is nothing to resume\n"
    assert "weights" in said.out
    assert sorted((path, path.stat().st_mtime_ns) for path in finished.rglob("*")) == before


@pytest.mark.parametrize("missing", ["run.json", "config.json", "everything"])
def test_a_folder_that_is_no_runs_is_told(run, missing, capsys):
    shutil.rmtree(run) if missing == "everything" else (run / missing).unlink()
    assert main(["resume", str(run)]) == 2
    name = "config.json" if missing == "everything" else missing
    assert capsys.readouterr().err == f"{run} is not a run's folder: there is no {name} in it\n"


def test_a_broken_header_is_told(run, capsys):
    (run / "run.json").write_text("{")
    assert main(["resume", str(run)]) == 2
    assert "run.json is broken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seed", "5"], "this run cannot continue with another configuration: seed was 0 and is 5"),
        (["--optimizer.learning-rate", "1e-4"], "optimizer.learning_rate was 0.003 and is 0.0001"),
        (["--sed", "5"], "did you mean 'seed'"),
        (["--seed"], "--seed needs a value"),
    ],
)
def test_what_cannot_change_is_wrong_use(run, flags, words, capsys):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["resume", str(run), *flags]) == 2
    assert words in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"} == before


@pytest.mark.parametrize(("name", "hint"), [("step2", "; did you mean 'step_2'?"), ("nosuch", "")])
def test_an_unknown_checkpoint_is_wrong_use_with_the_known_ones_and_the_nearest(run, capsys, name, hint):
    before = header(run)
    assert main(["resume", str(run), "--checkpoint", name]) == 2
    assert capsys.readouterr().err == f"{run} has no checkpoint {name}{hint} (known: step_1, step_2, step_3)\n"
    assert header(run) == before


@pytest.mark.parametrize("entries", [{"resumed": 5}, {"evals": 5}, {"ledger": []}, {"weights_digest": 5}], ids=str)
@pytest.mark.parametrize("flags", [[], ["--checkpoint", "step_2"]], ids=str)
def test_a_wrong_type_in_the_header_is_reported_in_a_sentence(run, capsys, entries, flags):
    change(run / "run.json", **entries)
    assert main(["resume", str(run), *flags]) == 2
    ((key, value),) = entries.items()
    assert capsys.readouterr().err == f"{run / 'run.json'} is broken: {key} cannot be {value}\n"


def test_a_broken_checkpoint_is_told_with_the_newest_good_one(run, capsys):
    (run / "checkpoints" / "step_2" / "model" / "config.json").write_text("{}")
    assert main(["resume", str(run), "--checkpoint", "step_2"]) == 1
    assert "the newest that is whole is step_3" in capsys.readouterr().err


class Chat(Callback):
    keys: ClassVar = []

    def __init__(self, api_key):
        self.keys.append(api_key)


def test_a_secret_that_was_not_written_down_is_asked_for(run, capsys, caplog, monkeypatch):
    monkeypatch.setitem(registry._KINDS.registered, "chat", Chat)
    change(run / "config.json", callbacks=[{"kind": "chat", "params": {"api_key": "REDACTED"}}])
    assert main(["resume", str(run)]) == 2
    assert capsys.readouterr().err == (
        "callbacks.0.params.api_key was a secret and was not written down: give it again, "
        "as --callbacks.0.params.api_key VALUE\n"
    )
    assert main(["resume", str(run), "--callbacks.0.params.api_key", "k-123456789"]) == 0
    assert Chat.keys == ["k-123456789"]
    said = capsys.readouterr()
    assert "k-123456789" not in said.out + said.err + caplog.text
    assert not [path for path in run.rglob("*") if path.is_file() and b"k-123456789" in path.read_bytes()]


def test_parts_that_were_given_in_python_are_told_to_be(tmp_path, capsys):
    rows = [{"prompt": f"{n}>", "answer": str(n) * 3} for n in range(10)]
    from proa.tasks.builtin.characters import tokenizer

    sft(
        model=CONFIG["model"], task=rows, tokenizer=tokenizer(), total_steps=1,
        train_batch_size=2, name="run", output_dir=tmp_path,
    )  # fmt: skip
    assert main(["resume", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"parts of this run were given in Python (see {tmp_path / 'run' / 'config.json'})" in said
    assert 'by the same call with resume="auto"' in said


@pytest.mark.parametrize("spelling", [".", "..", "../run", "run/"])
def test_the_folder_may_be_named_as_one_stands(finished, tmp_path, spelling, monkeypatch, capsys):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "inside").mkdir()
    stand = {".": "run", "..": "run/inside", "../run": "run", "run/": "."}[spelling]
    monkeypatch.chdir(tmp_path / stand)
    assert main(["resume", spelling]) == 0
    assert "is complete" in capsys.readouterr().err


# A full disk.


def fill_disk(monkeypatch, is_full):
    """From now on nothing can be written to files of which `is_full(name)` is true."""
    write, open_file = os.write, os.open
    opened = {}

    def opening(path, *rest, **options):
        descriptor = open_file(path, *rest, **options)
        opened[descriptor] = os.path.basename(path)  # noqa: PTH119
        return descriptor

    def writing(descriptor, data):
        if is_full(opened.get(descriptor, "")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "write", writing)
    monkeypatch.setattr("proa.record.patient_writes.sleep", lambda seconds: None)  # it stays full


def test_a_disk_that_is_full_outside_a_checkpoint_is_told_in_one_sentence_with_the_path(run, capsys, monkeypatch):
    fill_disk(monkeypatch, lambda name: name == "spans.jsonl")
    assert main(["resume", str(run), "--checkpoint", "step_1"]) == 1
    said = capsys.readouterr().err
    assert f"{run / 'spans.jsonl'} cannot be written: No space left on device. " in said
    assert "Traceback" not in said
    assert header(run)["status"] == "failed"
    assert "No space left on device" in header(run)["stop_reason"]
    assert "spans.jsonl" in header(run)["stop_reason"]


def test_a_disk_too_full_for_the_header_does_not_hide_why_the_run_failed(run, capsys, monkeypatch, caplog):
    fill_disk(monkeypatch, lambda name: name == "spans.jsonl" or (name == ".run.json.new" and full_for_headers))
    full_for_headers = []
    monkeypatch.setattr("proa.record.spans.SpanRecord.append", lambda self, spans: fail_from_now_on())

    def fail_from_now_on():
        full_for_headers.append(True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run / "spans.jsonl"))

    assert main(["resume", str(run), "--checkpoint", "step_1"]) == 1
    said = capsys.readouterr().err
    assert f"{run / 'spans.jsonl'} cannot be written: No space left on device. " in said
    assert "Traceback" not in said + caplog.text
    assert f"{run / 'run.json'} still says running" in caplog.text


def test_the_last_room_is_the_headers(run, monkeypatch):
    """A look at the run is given up for a header that says how it ended."""
    fill_disk(monkeypatch, lambda name: name == ".run.json.new" and (run / "live.json").exists() and failed)
    failed = []

    def fail_from_now_on(self, spans):
        (run / "live.json").write_text("{}")
        failed.append(True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run / "spans.jsonl"))

    monkeypatch.setattr("proa.record.spans.SpanRecord.append", fail_from_now_on)
    assert main(["resume", str(run), "--checkpoint", "step_1"]) == 1
    assert header(run)["status"] == "failed"


def test_a_replay_shows_the_digest_that_the_run_showed(finished, tmp_path, capsys):
    assert main(["replay", str(finished), "--into", str(tmp_path / "again"), "--json"]) == 0
    last = json.loads(capsys.readouterr().out)["compared"][-1]
    assert (last["recorded"], last["replayed"]) == (header(finished)["weights_digest"],) * 2


def test_a_complete_run_whose_metrics_are_gone_is_still_complete(run, capsys):
    assert main(["resume", str(run)]) == 0
    metrics = run / "metrics.jsonl"
    for spoil in (lambda: metrics.write_text("garbage\n"), metrics.unlink):
        spoil()
        capsys.readouterr()
        assert main(["resume", str(run)]) == 0
        told = capsys.readouterr()
        assert "metrics.jsonl cannot be read, so no curves are shown" in told.err
        assert "/model" in told.out
