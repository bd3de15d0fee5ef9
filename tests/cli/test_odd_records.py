"""Records with odd contents: read, or said to be broken in a sentence; never a traceback."""

import json
import os
import time

import pytest
from tests.cli.looked_at import CONFIG, ended_process, make_run, rows, write_lines

from proa.cli.exit_codes import exit_code
from proa.cli.main import main
from proa.errors import ProaError
from proa.record import evals, reading
from proa.record.live import LiveFile, LiveView, WaitView

HUGE = 10**400


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


def said(capsys, *arguments, code=0):
    assert main([*map(str, arguments)]) == code
    return capsys.readouterr()


def strict(text):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def change(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


# -- what is broken ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "entries", "words"),
    [
        ("run.json", {"ended": -5.0}, "ended cannot be -5.0"),
        ("run.json", {"started": float("nan")}, "started cannot be nan"),
        ("run.json", {"steps_run": "3"}, "steps_run cannot be '3'"),
        ("run.json", {"resumed": 5}, "resumed cannot be 5"),
        ("run.json", {"evals": {"sorting": 3}}, "the scores of eval sorting cannot be 3"),
        ("run.json", {"performance": {"maker_0": 3}}, "the performance of maker_0 cannot be 3"),
        ("run.json", {"performance": {"maker_0": {"shares": 3}}}, "the performance of maker_0 cannot be {'shares': 3}"),
        ("config.json", {"total_steps": 2.5}, "total_steps cannot be 2.5"),
        ("live.json", {"time": float("nan")}, "time cannot be nan"),
        ("live.json", {"time": 5.0, "step": "x" * 400}, "step must be of type int, not 'xxx"),
        (
            "live.json",
            {"time": 5.0, "actors": [{"name": "a", "role": "maker", "since": float("inf")}]},
            "since cannot be inf",
        ),
    ],
    ids=lambda one: str(one)[:30],
)
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=str)
def test_what_no_run_writes_is_broken(tmp_path, capsys, file, entries, words, flags):
    run = make_run(tmp_path)
    LiveFile(run.path).look(lambda: LiveView(5.0))
    change(run.path / file, **entries)
    told = said(capsys, "show", run.path, *flags, code=1).err
    assert words in told
    assert len(told) < 300
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("metrics.jsonl", b"[" * 100_000), ("metrics.jsonl", b'{"step": "1"}'),
        ("metrics.jsonl", b'{"step": 1, "time": -1.0}'), ("run.json", b"[" * 100_000), ("evals.jsonl", b"\xff"),
        ("evals.jsonl", b"3"), ("evals.jsonl", b'{"name": "a", "breakdowns": 3}'),
    ],
    ids=lambda one: one[:30].decode(errors="replace") if isinstance(one, bytes) else one,
)  # fmt: skip
def test_a_line_that_no_run_writes_is_broken(tmp_path, capsys, file, text):
    run = make_run(tmp_path)
    (run.path / file).write_bytes(text + b"\n")
    told = said(capsys, "show", run.path, code=1).err
    assert f"{file} is broken" in told
    assert told.count("\n") == 1


def test_a_broken_timeline_is_said_to_be_broken(tmp_path, capsys):
    run = make_run(tmp_path)
    (run.path / "spans.jsonl").write_text("garbage\n")
    assert "spans.jsonl is broken at line 1" in said(capsys, "show", run.path, "--trace", tmp_path / "t", code=1).err


@pytest.mark.parametrize(
    "content",
    [{"status": "completed"}, {"status": "completed", "runs": [3], "arms": []}, {"runs": [], "arms": []},
     {"status": "completed", "runs": 3, "arms": []}, {"status": "completed", "runs": [], "arms": [[]]}],
    ids=str,
)  # fmt: skip
def test_a_broken_experiment_is_said_to_be_broken(tmp_path, capsys, content):
    (tmp_path / "experiment.json").write_text(json.dumps(content))
    told = said(capsys, "show", tmp_path, code=1).err
    assert "experiment.json is broken" in told
    assert told.count("\n") == 1


# -- what is tolerated -------------------------------------------------------------------------------


def test_what_is_odd_and_does_no_harm_is_shown(tmp_path, capsys):
    metrics = [
        {"step": 0, "loss": {"inner": [1, 2]}}, {"step": 1, "loss": "high", "reward": [1]}, {"step": 2, "big": HUGE},
    ]  # fmt: skip
    config = CONFIG | {"eval": [3, None, {}, {"name": "sorting"}], "algorithm": "grpo"}
    run = make_run(tmp_path, metrics=metrics, config=config, ledger={"leased": 1, "dropped": None}, steps_run=3)
    out = said(capsys, "show", run.path).out
    assert "samples: 1 leased = 0 trained\n" in out
    write_lines(run.path / "metrics.jsonl", [{"step": 2, "big": 2**64}])
    assert f"big {2**64}" in said(capsys, "show", run.path).out
    assert said(capsys, "runs", tmp_path).out


@pytest.mark.parametrize("verb", ["show", "runs"])
def test_json_has_no_word_for_nan_and_none_is_used(tmp_path, capsys, verb):
    run = make_run(tmp_path, status="completed", steps_run=1)
    (run.path / "metrics.jsonl").write_text('{"step": 0, "loss": NaN, "sorting.exact": -Infinity}\n')
    told = strict(said(capsys, verb, run.path, "--json").out)
    assert "-Infinity" in json.dumps(told)
    if verb == "show":
        assert told["metrics"]["loss"] == "NaN"


def test_json_of_an_experiment_has_no_nan(tmp_path, capsys):
    (tmp_path / "experiment.json").write_text('{"status": "completed", "best_score": NaN, "runs": [], "arms": []}')
    assert strict(said(capsys, "show", tmp_path, "--json").out)["best_score"] == "NaN"


def test_half_a_character_is_printed_as_json(tmp_path, capsys):
    run = make_run(tmp_path, status="failed", stop_reason="half \ud83d")
    assert strict(said(capsys, "show", run.path, "--json").out)["header"]["stop_reason"] == "half \ud83d"


# -- evals -------------------------------------------------------------------------------------------


def test_an_eval_that_was_long_ago_is_shown_of_a_run_that_goes_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reading, "TAIL_BYTES", 200)
    monkeypatch.setattr(evals, "TAIL_BYTES", 100)
    run = make_run(tmp_path, metrics=rows(100))
    often = [{"name": "sorting.long", "metrics": {"exact": step / 100}, "step": step} for step in range(50)]
    write_lines(run.path / "evals.jsonl", [{"name": "sorting", "metrics": {"exact": 0.5}, "step": 3}, *often])
    out = said(capsys, "show", run.path).out
    assert "eval sorting: exact 0.5\n" in out
    assert "eval sorting.long: exact 0.49\n" in out
    assert strict(said(capsys, "show", run.path, "--json").out)["evals"]["sorting"] == {"exact": 0.5}


def test_a_benchmark_after_training_is_among_the_evals(tmp_path, capsys):
    run = make_run(tmp_path, status="completed", evals={"sorting": {"exact": 0.25}})
    write_lines(run.path / "evals.jsonl", [{"name": "held_out", "metrics": {"exact": 0.75}, "step": None}])
    out = said(capsys, "show", run.path).out
    assert "eval sorting: exact 0.25\n" in out
    assert "eval held_out: exact 0.75\n" in out


@pytest.mark.parametrize("of", ["rows", "header"])
def test_evals_whose_names_begin_alike_are_kept_apart(tmp_path, capsys, of):
    scores = {"sorting.exact": 0.5, "sorting.long.exact": 0.25}
    if of == "rows":
        run = make_run(tmp_path, metrics=[{"step": 0, **scores}])
    else:  # as a header has them that was written by prefix alone
        mixed = {"sorting": {"exact": 0.5, "long.exact": 0.25}, "sorting.long": {"exact": 0.25}}
        run = make_run(tmp_path, status="completed", evals=mixed)
    out = said(capsys, "show", run.path).out
    assert "eval sorting: exact 0.5\n" in out
    assert "eval sorting.long: exact 0.25\n" in out


# -- time --------------------------------------------------------------------------------------------


def test_the_pause_before_a_run_went_on_is_not_time_it_ran(tmp_path, capsys):
    resumed = [{"at": 10_000.0, "left": 1060.0, "cut_off": True}]
    run = make_run(tmp_path, status="completed", started=1000.0, ended=10_030.0, resumed=resumed)
    assert "ran about 90 s" in said(capsys, "show", run.path).out
    run.update(resumed=[{"at": 10_000.0, "left": 1060.0}])
    assert "ran 90 s" in said(capsys, "show", run.path).out


def test_a_run_that_was_resumed_and_loads_is_getting_ready_and_does_not_hang(tmp_path, capsys):
    run = make_run(tmp_path, metrics=rows(3), started=1000.0, resumed=[{"at": time.time() - 50}])
    out = said(capsys, "show", run.path).out
    assert "starting up for 50 s" in out
    assert "sign of life" not in out


def test_waits_are_told_the_longest_first(tmp_path, capsys):
    run = make_run(tmp_path)
    waits = [WaitView("maker_0", "a lease", 3.0), WaitView("the trainer", "lease 1", 9.0), WaitView("m", "x", 5.0)]
    LiveFile(run.path).look(lambda: LiveView(time.time(), waits=waits))
    told = [
        line.split(" has waited ")[0] for line in said(capsys, "show", run.path).out.splitlines() if "waited" in line
    ]
    assert told == ["the trainer", "m", "maker_0"]


# -- the list ----------------------------------------------------------------------------------------


def test_the_list_says_what_was_cut_off_and_what_is_broken(tmp_path, capsys):
    make_run(tmp_path, "gone", pid=ended_process(), started=1000.0)
    broken = make_run(tmp_path, "broken")
    change(broken.path / "run.json", started="today")
    out = said(capsys, "runs", tmp_path).out
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "cut off" in lines["gone"]
    assert "broken: " in out
    assert "started cannot be 'today'" in out
    found = {row["name"]: row["status"] for row in strict(said(capsys, "runs", tmp_path, "--json").out)}
    assert found == {"gone": "cut off", "broken": "broken"}


def test_the_list_reports_a_wrong_type_in_a_header(tmp_path, capsys):
    change(make_run(tmp_path, "odd").path / "run.json", resumed=5)
    assert "resumed cannot be 5" in said(capsys, "runs", tmp_path).out


def test_an_experiment_whose_runs_began_at_no_time_is_listed(tmp_path, capsys):
    run = make_run(tmp_path / "sweep", "a")
    change(run.path / "run.json", started="today")
    (tmp_path / "sweep" / "experiment.json").write_text('{"status": "completed", "runs": [{}], "arms": []}')
    rows = strict(said(capsys, "runs", tmp_path, "--json").out)
    assert {row["name"]: row["status"] for row in rows} == {"sweep": "completed", "sweep/a": "broken"}


# -- errors -----------------------------------------------------------------------------------------


def test_the_notes_of_an_error_are_told_below_it(capsys):
    def work():
        error = ProaError("it broke")
        error.add_note("while it was ending the run: too late")
        raise error

    assert exit_code(work) == 1
    assert capsys.readouterr().err == "ProaError: it broke\n  while it was ending the run: too late\n"


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "spans.jsonl", "evals.jsonl"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path, capsys, name):
    run = make_run(tmp_path).path
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    told = said(capsys, "report", run, code=1).err
    assert f"{name} is " in told
    assert "not a regular file" in told
    if name != "spans.jsonl":
        said(capsys, "show", run, code=1)
        said(capsys, "runs", tmp_path)
