"""`proa show`: of a finished run, of one that goes on, of one that was cut off; and clear words for likely mistakes."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.small import DETACHED

from proa import MakerCallback
from proa.cli import show as verb
from proa.cli.main import main
from proa.recipes import grpo
from proa.record import reading
from proa.record.live import ActorView, LiveFile, LiveView, WaitView
from proa.record.run_folder import RunFolder

LEDGER = {"leased": 24, "trained": 16, "buffered": 6, "in_flight": 2, "dropped": {}}
CONFIG = {"total_steps": 10, "train_epochs": 2, "eval": [{"name": "sorting"}]}


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def rows(count, begin=1000.0, seconds=0.5):
    return [
        {"step": step, "epoch": 0, "time": begin + step * seconds, "loss": 0.25, "reward": step / 10}
        for step in range(count)
    ]


def make_run(parent, name="demo", metrics=(), **entries):
    folder = RunFolder.create(parent / name, CONFIG)
    folder.update(**entries)
    (folder.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    return folder


def a_view(age=0.0, **changes):
    now = time.time() - age
    return LiveView(**{
        "time": now, "runtime": "local", "step": 4, "of": 20, "episode": 3, "version": 3, "versions": [2, 3],
        "ledger": LEDGER, "waits": [WaitView("the trainer", "lease 17, which maker_0+1 has", 4.0)],
        "actors": [
            ActorView("the trainer", "trainer", doing="waiting for lease 17", since=now - 4, version=3, tokens=1500),
            ActorView("maker_0+1", "maker", "healthy", "generating lease 17", now - 7, 2, 5, 1234, 1, "it hung"),
        ],
    } | changes)  # fmt: skip


def shown(capsys, *arguments, code=0):
    assert main(["show", *map(str, arguments)]) == code
    return capsys.readouterr()


# -- a finished run ----------------------------------------------------------------------------------


def test_a_finished_run_says_how_it_ended_and_what_came_of_it(tmp_path, capsys):
    run = make_run(tmp_path, metrics=rows(4))
    run.update(
        status="completed", stop_reason="enough", stopped_by="EarlyStopping", steps_run=4, policy_version=4,
        weights_digest="0123456789abcdef0123", ledger=LEDGER | {"dropped": {"stale": 2}},
        evals={"sorting": {"exact": 0.5}}, callback_errors={"Printer": 2},
        first_callback_errors={"Printer": "OSError: no paper"}, started=1000.0, ended=1300.0,
    )  # fmt: skip
    out = shown(capsys, run.path).out
    assert out.startswith("demo: completed, 4 of 20 steps, 2 steps/s\nenough (by EarlyStopping)\nstarted ")
    assert "ran 5 min" in out
    assert "weights 0123456789abcdef, version 4" in out
    assert "24 leased = 16 trained + 6 buffered + 2 in flight + dropped (2 stale)" in out
    assert "eval sorting: exact 0.5" in out
    assert "callback errors: Printer 2\nPrinter first said: OSError: no paper\n" in out
    assert "step 4:" in out
    assert "loss 0.25" in out
    assert "reward over the run: ▁▃▅█" in out
    assert "left" not in out
    assert "sign of life" not in out


def test_what_evaluators_measured_is_shown_for_each_actor(tmp_path, capsys):
    rates = {"samples_per_second": 22.19, "tokens_per_second": 288.51, "tflops": 5.2e-06, "samples": 24}
    measured = {
        "trainer_0": {**rates, "shares": {"training": 0.25, "other": 0.75}},
        "maker_0": {"samples": 0, "shares": {"other": 1.0}},
    }
    run = make_run(tmp_path, status="completed", steps_run=1, performance=measured)
    lines = shown(capsys, run.path).out.splitlines()
    assert (
        "performance of trainer_0: 22.19 samples/s, 288.5 tokens/s, 5.2e-06 TFLOP/s; time training 25.0 %, other 75.0 %"
    ) in lines
    assert "performance of maker_0: nothing measured after the warm-up" in lines
    assert json.loads(shown(capsys, run.path, "--json").out)["header"]["performance"] == measured


def test_a_failed_run_says_why(tmp_path, capsys):
    run = make_run(tmp_path, status="failed", stop_reason="ValueError: [my] bug", steps_run=1)
    assert "demo: failed, 1 of 20 steps\nValueError: [my] bug\n" in shown(capsys, run.path).out


def test_a_nan_is_shown_and_leaves_a_gap_in_the_curve(tmp_path, capsys):
    metrics = rows(4)
    metrics[1]["reward"] = metrics[3]["loss"] = "NaN"
    run = make_run(tmp_path, metrics=metrics, status="completed", steps_run=4)
    out = shown(capsys, run.path).out
    assert "loss nan" in out
    assert "reward over the run: ▁ ▅█" in out


def test_of_a_long_run_only_the_end_is_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reading, "TAIL_BYTES", 900)
    run = make_run(tmp_path, metrics=rows(500), status="completed", steps_run=500)
    out = shown(capsys, run.path).out
    assert "500 of 20 steps, 2 steps/s" in out
    assert "step 500:" in out
    assert "reward over the last 12 steps: ▁" in out


# -- a run that goes on ------------------------------------------------------------------------------


def test_a_run_that_goes_on_shows_its_fleet_its_waits_and_its_rate(tmp_path, capsys):
    metrics = [*rows(4), {"step": 1, "epoch": 0, "time": 1002.0, "sorting.exact": 0.75}]
    run = make_run(tmp_path, metrics=metrics)
    LiveFile(run.path).look(lambda: a_view())
    out = shown(capsys, run.path).out
    assert out.startswith("demo: running, 4 of 20 steps, 2 steps/s, about 8.0 s left\n")
    assert f"process {os.getpid()} on " in out
    assert "local, episode 3, version 3 (kept: 2, 3), as of 0." in out
    table = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert table == [
        ["the trainer", "healthy", "waiting for lease 17", "4.0 s", "3", "", "1,500", ""],
        ["maker_0+1", "healthy", "generating lease 17", "7.0 s", "2", "5", "1,234", "1"],
    ]
    assert "the trainer has waited 4.0 s for lease 17, which maker_0+1 has" in out
    assert "the previous maker_0+1 was lost: it hung" in out
    assert "24 leased = 16 trained + 6 buffered + 2 in flight" in out
    assert "eval sorting: exact 0.75" in out
    assert "sign of life" not in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_rate_is_that_of_the_last_steps(tmp_path, capsys):
    slow, fast = rows(100, begin=0.0, seconds=9.0), rows(160, begin=1000.0, seconds=0.5)[100:]
    run = make_run(tmp_path, metrics=slow + fast)
    assert "160 of 20 steps, 2 steps/s" in shown(capsys, run.path).out


def test_a_run_that_has_written_nothing_yet_is_starting_up(tmp_path, capsys):
    run = make_run(tmp_path)
    (run.path / "metrics.jsonl").unlink()
    out = shown(capsys, run.path).out
    assert "demo: running, 0 of 20 steps" in out
    assert "starting up" in out


def test_a_line_that_is_still_being_written_is_not_read(tmp_path, capsys):
    run = make_run(tmp_path, metrics=rows(3))
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "ep')
    assert "step 3:" in shown(capsys, run.path).out


# -- a run that was cut off --------------------------------------------------------------------------


def ended_process():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_run_whose_process_is_gone_was_cut_off(tmp_path, capsys):
    run = make_run(tmp_path, pid=ended_process(), started=time.time() - 260, metrics=rows(4))
    LiveFile(run.path).look(lambda: a_view(age=200))
    out = shown(capsys, run.path).out
    assert "demo: cut off, 4 of 20 steps" in out
    assert "no sign of life for 3 min, and its process" in out
    assert "is gone: the run was cut off" in out
    assert "ran about 60 s" in out
    assert "left" not in out
    assert json.loads(shown(capsys, run.path, "--json").out)["cut_off"] is True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_process_that_ended_and_that_nobody_has_asked_for_is_gone_too(tmp_path, capsys):
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    run = make_run(tmp_path, pid=process.pid)
    assert "demo: cut off" in shown(capsys, run.path).out
    process.wait()


def test_one_on_another_machine_is_judged_by_its_view(tmp_path, capsys):
    run = make_run(tmp_path, host="some other machine", pid=1, started=1000.0)
    LiveFile(run.path).look(lambda: a_view(age=200))
    assert "no sign of life for 3 min: its process is probably gone" in shown(capsys, run.path).out
    LiveFile(run.path).look(lambda: a_view(age=20))
    assert "sign of life" not in shown(capsys, run.path).out


def test_one_whose_process_is_there_may_hang(tmp_path, capsys):
    run = make_run(tmp_path, started=1000.0)
    LiveFile(run.path).look(lambda: a_view(age=200))
    assert f"no sign of life for 3 min, but process {os.getpid()} exists" in shown(capsys, run.path).out


def test_a_run_that_ends_while_it_is_looked_at_was_not_cut_off(tmp_path, capsys, monkeypatch):
    run = make_run(tmp_path, pid=ended_process())
    look = reading._process

    def late(header):
        run.update(status="completed", steps_run=20)
        return look(header)

    monkeypatch.setattr(reading, "_process", late)
    assert "demo: completed, 20 of 20 steps" in shown(capsys, run.path).out


# -- json and following ------------------------------------------------------------------------------


def test_json_is_one_object_and_nothing_else(tmp_path, capsys):
    evals = {"step": 3, "epoch": 0, "time": 1002.0, "sorting.exact": 0.75}
    run = make_run(tmp_path, metrics=[*rows(4), evals])
    view = a_view()
    LiveFile(run.path).look(lambda: view)
    captured = shown(capsys, run.path, "--json")
    told = json.loads(captured.out)
    assert told["header"] == json.loads((run.path / "run.json").read_text())
    assert LiveView.from_dict(told["live"]) == view
    assert told["metrics"] == rows(4)[3] | evals
    assert (told["steps_per_second"], told["cut_off"]) == (2.0, False)
    assert captured.err == ""


def test_json_of_a_run_without_a_view_or_metrics(tmp_path, capsys):
    told = json.loads(shown(capsys, make_run(tmp_path, status="completed").path, "--json").out)
    assert (told["live"], told["metrics"]) == (None, None)


def sleeps(monkeypatch, *then):
    """Instead of sleeping, one thing after the other happens."""
    events = iter(then)
    monkeypatch.setattr(verb, "time", SimpleNamespace(sleep=lambda seconds: next(events)()))


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=str)
def test_following_ends_with_the_run(tmp_path, capsys, monkeypatch, flags):
    run = make_run(tmp_path, metrics=rows(2))
    LiveFile(run.path).look(lambda: a_view())
    sleeps(
        monkeypatch,
        lambda: LiveFile(run.path).look(lambda: a_view(step=7)),
        lambda: run.update(status="completed", steps_run=20),
    )
    out = shown(capsys, run.path, "--follow", *flags).out
    if flags:
        assert json.loads(out)["header"]["status"] == "completed"
    else:
        assert out.count("demo: completed, 20 of 20 steps") == 1


def test_on_a_terminal_it_is_drawn_again_and_again(tmp_path, capsys, monkeypatch):
    run = make_run(tmp_path, metrics=rows(2))
    LiveFile(run.path).look(lambda: a_view())
    sleeps(
        monkeypatch,
        lambda: LiveFile(run.path).look(lambda: a_view(step=7)),
        lambda: run.update(status="completed", steps_run=20),
    )
    monkeypatch.setattr(verb, "Console", lambda **_: Console(force_terminal=True, color_system=None, width=100))
    out = shown(capsys, run.path, "--follow").out
    assert [out.find(words) >= 0 for words in ("running, 4 of 20", "running, 7 of 20", "completed, 20 of 20")] == [
        True
    ] * 3
    assert out.rstrip().endswith("\x1b[?25h"), "the cursor is given back"


def test_following_ends_when_the_process_is_gone(tmp_path, capsys, monkeypatch):
    run = make_run(tmp_path)
    sleeps(monkeypatch, lambda: run.update(pid=ended_process()))
    assert "demo: cut off" in shown(capsys, run.path, "--follow").out


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=str)
def test_ctrl_c_ends_following_without_a_traceback(tmp_path, capsys, monkeypatch, flags):
    def interrupt():
        raise KeyboardInterrupt

    run = make_run(tmp_path)
    sleeps(monkeypatch, interrupt)
    assert shown(capsys, run.path, "--follow", *flags, code=130).err == "interrupted\n"


# -- likely mistakes ---------------------------------------------------------------------------------


def test_a_folder_that_does_not_exist(tmp_path, capsys):
    make_run(tmp_path, "first")
    assert shown(capsys, tmp_path / "frist", code=2).err == f"{tmp_path}/frist does not exist; did you mean 'first'?\n"
    assert shown(capsys, tmp_path / "no" / "where", code=2).err == f"{tmp_path}/no/where does not exist\n"


def test_a_folder_that_holds_runs_lists_them(tmp_path, capsys):
    make_run(tmp_path / "runs", "first")
    make_run(tmp_path / "runs" / "experiment", "second")
    message = shown(capsys, tmp_path / "runs", code=2).err
    assert f"it holds some: {tmp_path}/runs/experiment/second, {tmp_path}/runs/first\n" in message


def test_a_folder_that_holds_many_runs_lists_some(tmp_path, capsys):
    for number in range(23):
        make_run(tmp_path, f"run_{number:02}")
    message = shown(capsys, tmp_path, code=2).err
    assert message.endswith("run_19 and 3 more\n")


def test_what_is_no_run(tmp_path, capsys):
    assert shown(capsys, tmp_path, code=2).err == f"{tmp_path} is not a run's folder: there is no run.json in it\n"
    (tmp_path / "run.yaml").write_text("name: demo")
    assert "run.yaml is a file: give the folder of a run" in shown(capsys, tmp_path / "run.yaml", code=2).err


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("run.json", '{"status": "run', "run.json is broken: Unterminated string"),
        ("run.json", "", "run.json is broken: Expecting value"),
        ("run.json", "\xff\xfe", "run.json is broken"),
        ("run.json", "[]", "it holds a list, not an object"),
        ("run.json", "{}", "it has no status"),
        ("run.json", '{"status": "running", "started": "today"}', "started cannot be 'today'"),
        ("live.json", '{"time": 1', "live.json is broken"),
        ("config.json", "{", "config.json is broken"),
        ("metrics.jsonl", '{"step": 0, "time": 1}\n{"st\n{"step": 2}\n', "metrics.jsonl is broken at the line '{\"st'"),
        ("metrics.jsonl", "{}\n", "metrics.jsonl is broken"),
        ("metrics.jsonl", '{"step": 1, "time": "x"}\n', "time cannot be 'x'"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=str)
def test_a_broken_record_is_said_to_be_broken(tmp_path, capsys, name, text, words, flags):
    run = make_run(tmp_path)
    (run.path / name).write_text(text, encoding="latin-1")
    captured = shown(capsys, run.path, *flags, code=1)
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


# -- the real thing ----------------------------------------------------------------------------------


class Slow(MakerCallback):
    def __init__(self, go_on):
        self.go_on = go_on

    def on_send_start(self):
        self.go_on.wait(120)


def until(look, ready):
    deadline = time.monotonic() + 30
    while not ready(told := look()):
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
    return told


def test_a_real_run_can_be_looked_at_while_it_goes_on_and_followed_to_its_end(tmp_path, capsys):
    go_on, folder = threading.Event(), tmp_path / "demo"

    settings = DETACHED | {
        "total_steps": 3,
        "makers": 2,
        "output_dir": tmp_path,
        "name": "demo",
        "progress": False,
        "callbacks": [Slow(go_on)],
    }
    run = threading.Thread(target=grpo, kwargs=settings | {"callbacks": [Slow(go_on)]})
    run.start()
    try:
        until((folder / "live.json").exists, bool)
        told = until(
            lambda: json.loads(shown(capsys, folder, "--json").out),
            lambda told: any(wait["owner"] == "the trainer" for wait in told["live"]["waits"]),
        )
        assert (told["header"]["status"], told["header"]["pid"]) == ("running", os.getpid())
        assert [actor["name"] for actor in told["live"]["actors"]] == ["the trainer", "maker_0", "maker_1"]
        out = until(lambda: shown(capsys, folder).out, lambda out: "for lease 0, which maker_" in out)
        assert "the trainer has waited" in out
    finally:
        go_on.set()
    out = shown(capsys, folder, "--follow").out
    run.join()
    assert "demo: completed, 3 of 3 steps" in out
    assert LiveFile.read(folder).step == 3


def test_it_needs_no_torch_and_takes_well_under_a_second(tmp_path):
    run = make_run(tmp_path, metrics=rows(300))
    LiveFile(run.path).look(lambda: a_view())
    source = (
        f"import sys, time; from proa.cli.main import main; main(['show', {str(run.path)!r}]); "
        "print(*sys.modules); print(time.process_time())"
    )
    seconds = []
    for _ in range(3):  # of its own time, which others on a busy machine slow down a little, too
        out = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
        *shown_lines, modules, spent = out.splitlines()
        seconds.append(float(spent))
    assert "demo: running" in "\n".join(shown_lines)
    assert not {"torch", "transformers", "ray", "numpy", "pydantic"} & set(modules.split())
    assert min(seconds) < 1.0


def test_a_late_eval_of_an_earlier_step_does_not_hide_the_last_step(tmp_path, capsys):
    late = {"step": 1, "epoch": 0, "time": 1003.0, "sorting.exact": 0.5}
    run = make_run(tmp_path, metrics=[*rows(5), late])
    told = json.loads(shown(capsys, run.path, "--json").out)
    assert (told["metrics"]["step"], told["metrics"]["loss"]) == (4, 0.25)
    assert "5 of 20 steps" in shown(capsys, run.path).out
    assert told["evals"] == {"sorting": {"exact": 0.5}}
    assert told["steps_per_second"] == 2.0


def test_a_late_baseline_does_not_count_in_the_rate(tmp_path, capsys):
    late = {"step": -1, "time": 1001.2, "sorting.exact": 0.5}
    run = make_run(tmp_path, metrics=[*rows(3), late, *rows(5)[3:]])
    assert json.loads(shown(capsys, run.path, "--json").out)["steps_per_second"] == 2.0
