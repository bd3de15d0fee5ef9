"""What users do wrong, verb by verb: one sentence that says so, an exit code, and never a traceback."""

import errno
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from tests.small import MODEL

from proa.cli.exit_codes import exit_code
from proa.cli.main import main
from proa.record.run_folder import RunFolder
from proa.tasks.builtin.characters import tokenizer

MODULE = """
def rows():
    return [{"prompt": f"{n}>", "answer": str(n)} for n in range(10)]

def length(completions):
    return [float(len(text)) for text in completions]

def raising(completions):
    raise KeyError("gold")

def takes_nothing():
    return {"x": 1.0}

def fails(policy):
    return {"x": policy.nowhere}

def counts(policy):
    return {"version": policy.version, "step": policy.step, "nothing": float("nan")}
"""


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a module of the user's, and a run of two steps whose task is in it."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("made")
    (folder / "theirs.py").write_text(MODULE)
    tokenizer().save_pretrained(folder / "tokenizer")
    config = {
        "name": "run", "output_dir": "runs", "total_steps": 2, "train_batch_size": 4, "wait_timeout": 60.0,
        "sampling": {"group_size": 2, "max_new_tokens": 4},
        "model": {"config": MODEL, "tokenizer": str(folder / "tokenizer")},
        "task": {"source": "theirs:rows"}, "reward": {"workers": 0, "functions": ["theirs:length"]},
        "eval": [{"name": "held_out", "source": "theirs:rows", "metric": "theirs:length", "count": 2}],
    }  # fmt: skip
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(os, "fsync", lambda descriptor: None)
        assert main(["train", "run.yaml"]) == 0
    sys.modules.pop("theirs", None)
    return folder


@pytest.fixture
def here(made, monkeypatch):
    """Where the run and the module lie, with nothing of it on Python's path yet."""
    monkeypatch.chdir(made)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield made
    sys.modules.pop("theirs", None)


@pytest.fixture
def plain_file(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file"


def said(capsys, *arguments, code):
    """What a verb says on stderr."""
    assert main([str(argument) for argument in arguments]) == code
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return told


def as_json(capsys, *arguments, code=0):
    assert main([*map(str, arguments), "--json"]) == code

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


# -- replay ------------------------------------------------------------------------------------------


def test_replay_finds_modules_beside_where_one_stands(here, tmp_path, capsys):
    assert as_json(capsys, "replay", "runs/run", "--into", tmp_path / "again")["same"] is True


def test_a_replay_to_a_moment_without_a_checkpoint_is_no_difference(here, tmp_path, capsys):
    told = as_json(capsys, "replay", "runs/run", "--until", 1, "--into", tmp_path / "one")
    assert (told["same"], told["compared"], told["steps"]) == (None, [], 1)
    assert main(["replay", "runs/run", "--until", "1", "--into", str(tmp_path / "two")]) == 0
    assert "nothing was compared" in capsys.readouterr().out


def test_a_replay_says_what_flags_changed_and_that_a_difference_is_to_be_expected(here, tmp_path, capsys):
    assert main(["replay", "runs/run", "--optimizer.learning_rate", "0.01", "--into", str(tmp_path / "other")]) == 1
    out = capsys.readouterr().out
    before = json.loads((here / "runs/run/config.json").read_text())["optimizer"]["learning_rate"]
    assert f"optimizer.learning_rate was {before} and is 0.01" in out
    assert "a difference is to be expected" in out


def test_a_change_that_changes_nothing_of_what_is_learned_is_no_reason_for_a_difference(here, tmp_path, capsys):
    told = as_json(capsys, "replay", "runs/run", "--makers", 2, "--into", tmp_path / "two")
    assert told["changes"] == {"makers": {"before": 1, "now": 2}}
    assert (told["same"], told["difference_expected"]) == (True, False)


def test_a_replay_of_a_run_that_goes_on_says_so(here, tmp_path, capsys):
    folder = RunFolder.create(tmp_path / "live", json.loads((here / "runs/run/config.json").read_text()))
    assert "it is running" in said(capsys, "replay", folder.path, code=2)
    folder.update(status="failed")
    assert "it ended before its first" in said(capsys, "replay", folder.path, code=2)


@pytest.mark.parametrize("verb", ["resume", "replay"])
def test_a_file_is_no_runs_folder(verb, plain_file, capsys):
    assert said(capsys, verb, plain_file, code=2) == f"{plain_file} is a file: give the folder of a run\n"


def test_resuming_an_experiments_folder_names_the_verb(tmp_path, capsys):
    (tmp_path / "experiment.json").write_text("{}")
    assert "proa experiment FILE" in said(capsys, "resume", tmp_path, code=2)


def test_resume_says_where_it_goes_on(here, tmp_path, capsys):
    shutil.copytree(here / "runs/run", tmp_path / "run")
    header = tmp_path / "run" / "run.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"status": "running"}))
    assert main(["resume", str(tmp_path / "run")]) == 0
    assert "resuming from checkpoint final, after 2 steps" in capsys.readouterr().out


# -- files that cannot be used -----------------------------------------------------------------------


def test_folders_that_cannot_be_made_are_told_in_a_sentence(here, plain_file, capsys):
    told = said(capsys, "train", "run.yaml", "--output_dir", plain_file / "x", code=2)
    assert told == f"{plain_file / 'x' / 'run'} cannot be used: not a directory\n"
    told = said(capsys, "replay", "runs/run", "--into", plain_file / "x", code=2)
    assert told == f"{plain_file / 'x'} cannot be used: not a directory\n"


def test_an_eval_does_not_begin_when_its_predictions_cannot_be_written(here, plain_file, capsys, monkeypatch):
    monkeypatch.setattr("proa.cli.evaluate.evaluate_folder", lambda *given, **named: pytest.fail("it began"))
    flags = ("eval", "runs/run", "--name", "held_out", "--output")
    assert "cannot be used" in said(capsys, *flags, plain_file / "x" / "p.jsonl", code=2)
    assert "is a folder" in said(capsys, *flags, plain_file.parent, code=2)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "permission denied" in said(capsys, *flags, plain_file, code=2)


def test_a_trace_that_cannot_be_written_is_told_in_a_sentence(here, tmp_path, capsys):
    missing = tmp_path / "missing" / "trace.json"
    told = said(capsys, "show", "runs/run", "--trace", missing, code=2)
    assert told == f"{missing} cannot be used: no such file or directory\n"


def test_a_full_disk_is_no_wrong_use_and_what_has_no_file_is_ours(capsys):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    def reset():
        raise OSError(errno.ECONNRESET, "Connection reset")

    def full_there():
        raise OSError(errno.ENOSPC, "No space left on device", "runs/x")

    assert exit_code(full_there, paths=["runs"]) == 1
    assert capsys.readouterr().err == "runs/x cannot be written: no space left on device\n"
    assert exit_code(full) == 1
    assert capsys.readouterr().err == "a file cannot be written: no space left on device\n"
    assert exit_code(reset) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_unreadable_run_is_named_and_the_others_are_listed(here, tmp_path, capsys, monkeypatch):
    for name in ("good", "locked"):
        shutil.copytree(here / "runs/run", tmp_path / name)
    look = Path.is_file

    def refused(path):
        if path.parent.name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path)

    monkeypatch.setattr(Path, "is_file", refused)
    rows = {row["name"]: row for row in as_json(capsys, "runs", tmp_path)}
    assert rows["good"]["status"] == "completed"
    assert rows["locked"]["status"] == "unreadable"
    assert "permission denied" in rows["locked"]["error"]


@pytest.mark.parametrize(("name", "words"), [("metrics.jsonl", "read"), (".report.html.new", "written")])
def test_a_report_says_whether_it_could_not_read_or_not_write(name, words, tmp_path, capsys, monkeypatch):
    def refused(folder, output=None):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder / name))

    monkeypatch.setattr("proa.cli.report.write_report", refused)
    assert f"cannot be {words}: " in said(capsys, "report", tmp_path, code=1)


# -- eval --------------------------------------------------------------------------------------------


def test_a_misspelt_verb_is_answered_with_the_nearest(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["trian", "run.yaml"])
    assert "there is no verb 'trian'; did you mean 'train'? (verbs: train, resume, " in capsys.readouterr().err


def test_a_flag_out_of_range_is_told_in_words(here, capsys):
    told = said(capsys, "eval", "runs/run", "--task", "theirs:rows", "--count", -3, code=2)
    assert told == "--count: input should be greater than or equal to 1, not -3\n"
    told = said(capsys, "eval", "runs/run", "--task", "theirs:rows", "--samples", 2, "--temperature", 0, code=2)
    assert "would be the same" in told
    assert "pydantic" not in told


def test_without_a_task_the_runs_evals_are_named(here, capsys):
    told = said(capsys, "eval", "runs/run", code=2)
    assert "its evals are held_out" in told
    assert "--name" in told
    assert "--task" in told


def test_a_misspelt_eval_is_told_with_a_near_one(here, capsys):
    assert "did you mean 'held_out'?" in said(capsys, "eval", "runs/run", "--name", "heldout", code=2)
    assert "its evals are held_out" in said(capsys, "eval", "runs/run", "--name", "zebra", code=2)


def test_a_metric_that_always_raises_is_told_and_is_no_success(here, capsys):
    flags = ("eval", "runs/run", "--task", "theirs:rows", "--metric", "theirs:raising", "--count", 2)
    assert as_json(capsys, *flags, code=1)["metrics"]["raising"] == "NaN"
    told = said(capsys, *flags, code=1)
    assert "2 of 2 completions could not be scored" in told
    assert "KeyError: 'gold'" in told


@pytest.mark.parametrize("source", ["runs/run", "runs/run/model", "runs/run/checkpoints/final"])
def test_final_weights_have_the_runs_version(source, here, capsys):
    task = [] if source != "runs/run/model" else ["--task", "sort_digits"]
    scores = as_json(capsys, "eval", source, "--evaluator", "theirs:counts", *task)["metrics"]
    assert scores == {"version": 2.0, "step": 2.0, "nothing": "NaN"}


def test_a_checkpoints_folder_is_scored_as_its_runs(here, capsys):
    told = as_json(capsys, "eval", "runs/run/checkpoints/final", "--name", "held_out")
    assert told["model"].endswith("checkpoints/final/model")
    assert told["rows"] == 2


def test_an_evaluator_shows_no_completions_and_a_long_path_stays_whole(here, tmp_path, capsys):
    far = tmp_path / ("x" * 100) / "run"
    shutil.copytree(here / "runs/run", far)
    assert main(["eval", str(far), "--evaluator", "theirs:counts"]) == 0
    out = capsys.readouterr().out
    assert "0 completions" not in out
    assert str(far / "checkpoints" / "final" / "model") in out
    assert main(["eval", str(far), "--name", "held_out"]) == 0
    assert "final/model: held_out, 2 completions" in capsys.readouterr().out


def test_an_evaluator_that_cannot_be_called_is_told_before_the_run_begins(here, tmp_path, capsys):
    flags = ("--eval", "[{name: own, evaluator: 'theirs:takes_nothing'}]", "--output_dir", tmp_path)
    told = said(capsys, "train", "run.yaml", *flags, code=2)
    assert "eval own: the evaluator theirs:takes_nothing is called with the policy alone" in told
    assert not list(tmp_path.iterdir())


def test_an_evaluator_that_raises_is_named_with_the_line(here, capsys):
    told = said(capsys, "eval", "runs/run", "--evaluator", "theirs:fails", code=1)
    line = MODULE.splitlines().index('    return {"x": policy.nowhere}') + 1
    assert "the evaluator theirs:fails raised AttributeError" in told
    assert f"theirs.py, line {line})" in told


# -- the other kind of file --------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["run: {}", "runs: {}", "matrix: {}", "metadata: {}", "n_repeats: 2"])
def test_an_experiment_given_to_train_is_told_to_be_one(key, tmp_path, capsys):
    (tmp_path / "e.yaml").write_text(f"name: e\n{key}\n")
    file = tmp_path / "e.yaml"
    assert said(capsys, "train", file, code=2) == f"{file} is an experiment: proa experiment {file}\n"


@pytest.mark.parametrize("key", ["total_steps: 3", "task: sort_digits"])
def test_a_run_given_to_experiment_is_told_to_be_one(key, tmp_path, capsys):
    (tmp_path / "r.yaml").write_text(f"name: e\n{key}\n")
    file = tmp_path / "r.yaml"
    told = said(capsys, "experiment", file, code=2)
    assert told == f"{file} is the configuration of one run: proa train {file}\n"


@pytest.mark.parametrize("flags", [["--follow"], ["--trace", "trace.json"]])
def test_what_show_cannot_do_with_an_experiment_is_refused(flags, tmp_path, capsys):
    (tmp_path / "experiment.json").write_text("{}")
    assert f"{flags[0]} is for one run" in said(capsys, "show", tmp_path, *flags, code=2)


# -- runs --------------------------------------------------------------------------------------------


def listed_run(parent, name, started):
    run = RunFolder.create(parent / name, {"total_steps": 1})
    scores = {"exact": 0.5, "completion_tokens": 7.0, "pass@8": 0.75, "mean@8": 0.5}
    run.update(status="completed", started=started, steps_run=1, evals={"held_out": scores, "transfer": scores})


def test_runs_are_in_the_order_in_which_they_began_whatever_is_written_later(tmp_path, capsys):
    now = time.time()
    for place, name in enumerate(("b", "a", "c")):
        listed_run(tmp_path, name, now + place)
    (tmp_path / "b" / "report.html").write_text("")
    os.utime(tmp_path / "b", (now + 99, now + 99))
    assert [row["name"] for row in as_json(capsys, "runs", tmp_path)] == ["b", "a", "c"]


def test_a_run_is_one_line_on_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for place in range(3):
        listed_run(tmp_path, f"learning_rate-0.0003_{place}", time.time() + place)
    assert main(["runs", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == 5
    assert all(" 1/1 " in line and "held_out.exact 0.5" in line for line in lines[2:])


def test_a_callback_that_calls_sys_exit_does_not_make_a_run_that_is_done(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaves.py").write_text(
        "import sys\nfrom proa import Callback\n\n"
        "class Leaves(Callback):\n    def on_step_end(self, state, step_idx, batch, metrics):\n        sys.exit(0)\n"
    )
    config = {
        "name": "run", "output_dir": ".", "algorithm": "sft", "total_steps": 2, "train_batch_size": 2,
        "model": {"config": MODEL}, "task": {"source": "sort_digits", "count": 4},
        "callbacks": [{"kind": "leaves:Leaves"}],
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", "run.yaml"]) == 1
    assert "sys.exit(0) was called before the work was complete" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "cancelled"
