"""Ctrl-C and SIGTERM, whenever they come: a checkpoint, exit code 130, nobody left, and the same end after `resume`."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from tests.chaos.nursery import REPOSITORY, living_below, with_paths
from tests.chaos.real_runs import (
    DETACHED,
    SUPERVISED,
    begin,
    came_to,
    go_on,
    header_of,
    held_up,
    let_go,
    newest_checkpoint,
)

from proa.lifecycle.hooks import EveryMoment
from proa.recipes import grpo


def test_a_signal_in_a_step_is_answered_after_it(nursery, undisturbed, tmp_path):
    run = held_up(nursery, tmp_path, DETACHED, "step_start", 3)
    run.send(signal.SIGTERM)
    run.wait_until(lambda: "once more to leave at once" in run.printed)
    assert run.code is None, "the first signal only asks"
    let_go(tmp_path)
    assert run.wait() == 130, run.printed
    told = header_of(tmp_path)
    assert (told["status"], told["stop_reason"], told["steps_run"]) == ("cancelled", "interrupted", 4)
    assert newest_checkpoint(tmp_path).step == 4
    assert "4 steps are saved: resume with proa resume run" in run.printed
    assert "Traceback" not in run.printed
    go_on(nursery, tmp_path)
    assert came_to(tmp_path) == undisturbed(DETACHED).outcome


class Signals(EveryMoment):
    """Sends this process a signal at the first moment of that name at that step."""

    uses_asyncio = False

    def __init__(self, moment, step, number):
        self.moment, self.step, self.number = moment, step, number

    def on_moment(self, event, payload):
        if event == self.moment and payload["state"].global_step == self.step:
            self.moment = ""
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("moment", "step", "saved"),
    [
        pytest.param("train_start", 0, 0, id="before the first step"),
        pytest.param("step_end", 5, 5, id="in the last step"),
        pytest.param("eval_start", 2, 2, id="in an eval between steps"),
        pytest.param("checkpoint_saved", 2, 2, id="while a checkpoint is told of"),
    ],
)
def test_a_signal_at_this_moment_is_answered_at_the_next_boundary(undisturbed, tmp_path, moment, step, saved):
    """In this process; the signal is a real one."""
    signals, place = Signals(moment, step, signal.SIGINT), {"output_dir": tmp_path, "name": "run"}
    with pytest.raises(KeyboardInterrupt):
        grpo(**DETACHED, **place, callbacks=[signals])
    assert newest_checkpoint(tmp_path).step == saved
    grpo(**DETACHED, **place, resume="auto")
    assert came_to(tmp_path) == undisturbed(DETACHED).outcome


def test_a_signal_in_the_final_evals_costs_nothing_that_was_learned(tmp_path):
    settings = {**DETACHED, "total_steps": 2, "eval": [{"name": "held_out", "count": 4}], "output_dir": tmp_path}
    grpo(**settings, name="whole")
    signals = Signals("eval_start", 2, signal.SIGINT)
    with contextlib.suppress(KeyboardInterrupt):
        grpo(**settings, name="run", callbacks=[signals])
    assert signals.moment == "", "it was sent"
    assert newest_checkpoint(tmp_path).step == 2
    grpo(**settings, name="run", resume="auto")
    digests = [json.loads((tmp_path / name / "run.json").read_text())["weights_digest"] for name in ("whole", "run")]
    assert digests[0] == digests[1]


@pytest.mark.prove
@pytest.mark.parametrize("number", range(112))
def test_a_signal_at_any_instant_leaves_a_checkpoint_and_the_run_ends_as_if_nothing_had_been(
    nursery, undisturbed, tmp_path, number
):
    settings = SUPERVISED if number % 4 == 3 else DETACHED
    whole = undisturbed(settings)
    run = begin(nursery, tmp_path, settings)
    time.sleep(random.Random(number).random() * whole.seconds * 0.9)
    run.send(signal.SIGINT if number % 2 else signal.SIGTERM)
    code = run.wait()
    told = header_of(tmp_path)
    if told["status"] != "completed":  # it was through before the signal came
        assert (code, told["status"], told["stop_reason"]) == (130, "cancelled", "interrupted"), run.printed
        saved = newest_checkpoint(tmp_path)
        assert told.get("steps_run", 0) == (saved.step if saved else 0)  # before its first step it may not say
        go_on(nursery, tmp_path)
    assert not nursery.left_behind()
    assert came_to(tmp_path) == whole.outcome


def left_at_once(nursery, undisturbed, tmp_path, run):
    """What is to be true of a run that was left in its fourth step, with a checkpoint after the second."""
    assert run.wait() == 130, run.printed
    assert header_of(tmp_path)["status"] == "cancelled"
    assert newest_checkpoint(tmp_path).step == 2
    go_on(nursery, tmp_path)
    assert came_to(tmp_path) == undisturbed(DETACHED).outcome


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.prove)])
def test_the_second_signal_leaves_at_once_with_the_last_checkpoint(nursery, undisturbed, tmp_path, number):
    run = held_up(nursery, tmp_path, DETACHED, "step_end", 4)
    run.send(signal.SIGINT)
    run.wait_until(lambda: "once more to leave at once" in run.printed)
    run.send(number)
    left_at_once(nursery, undisturbed, tmp_path, run)


@pytest.mark.prove
def test_the_end_of_the_grace_period_leaves_at_once_with_the_last_checkpoint(nursery, undisturbed, tmp_path):
    checkpoint = {**DETACHED["checkpoint"], "grace": 0.5}
    run = held_up(nursery, tmp_path, DETACHED, "step_end", 4, checkpoint=checkpoint)
    run.send(signal.SIGTERM)
    left_at_once(nursery, undisturbed, tmp_path, run)


@pytest.mark.parametrize("settings", [DETACHED, SUPERVISED], ids=["detached", "supervised"])
def test_a_signal_to_a_run_whose_reader_is_gone_saves_all_the_same(nursery, tmp_path, settings):
    marker = tmp_path / "held_up"
    holds_up = {"kind": "holds_up", "params": {"marker": str(marker), "moment": "step_start", "step": 1}}
    run = begin(nursery, tmp_path, settings, callbacks=[{"kind": "loses_its_reader"}, holds_up])
    run.wait_until(marker.exists)
    run.send(signal.SIGINT)
    let_go(tmp_path)
    assert run.wait() == 130, run.printed
    told = header_of(tmp_path)
    assert (told["status"], told["stop_reason"], told["steps_run"]) == ("cancelled", "interrupted", 2)
    assert newest_checkpoint(tmp_path).step == 2


def test_a_closed_terminal_is_a_stop_request_however_often_it_is_said(nursery, tmp_path):
    run = held_up(nursery, tmp_path, DETACHED, "step_start", 3)
    for _ in range(3):  # the kernel says it, and a shell may too
        run.send(signal.SIGHUP)
    let_go(tmp_path)
    assert run.wait() == 130, run.printed
    assert newest_checkpoint(tmp_path).step == 4


HANGS_ONCE = """\
import time
from pathlib import Path

def score(prompts, completions, **columns):
    if len(list(Path(".").glob("scored*"))) == 8 and not Path("held_up").exists():
        Path("held_up").touch()
        time.sleep(1000)
    Path(f"scored-{time.time_ns()}").touch()
    return [float(len(completion) % 3) for completion in completions]
"""


def trainer_waits_after(steps, run_folder):
    live = run_folder / "live.json"
    told = json.loads(live.read_text()) if live.exists() else {"step": -1, "waits": []}
    return told["step"] == steps and "the trainer" in [wait["owner"] for wait in told["waits"]]


@pytest.mark.prove
def test_sigterm_while_the_trainer_waits_for_a_reward_that_hangs_saves_and_leaves_nobody(
    nursery, undisturbed, tmp_path
):
    (tmp_path / "hangs_once.py").write_text(HANGS_ONCE)
    reward = {"functions": ["hangs_once.score"], "workers": 1, "timeout": 500.0}
    settings = {**DETACHED, "total_steps": 3, "eval": [], "reward": reward}
    run = begin(nursery, tmp_path, settings, checkpoint={"save_every": 0})
    run.wait_until(lambda: trainer_waits_after(2, tmp_path / "run"))
    run.send(signal.SIGTERM)
    assert run.wait() == 130, run.printed
    assert "2 steps are saved: resume with proa resume run" in run.printed
    assert not nursery.left_behind()
    told, saved = header_of(tmp_path), newest_checkpoint(tmp_path)
    assert saved.step == told["steps_run"] == 2
    go_on(nursery, tmp_path)
    assert header_of(tmp_path)["ledger"]["trained"] == 3 * 8


@pytest.mark.prove
def test_the_command_ends_with_130_after_either_signal_and_its_reward_worker_is_gone(tmp_path):
    settings = {**DETACHED, "total_steps": 100_000, "reward": {"workers": 1}, "checkpoint": {}}
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    numbers = [signal.SIGINT, signal.SIGTERM]
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "proa", "train", "run.yaml", "--output_dir", ".", "--name", number.name],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": with_paths(REPOSITORY / "src")}, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )
        for number in numbers
    ]  # fmt: skip
    for run, number in zip(runs, numbers, strict=True):
        metrics = tmp_path / number.name / "metrics.jsonl"
        while run.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 2):
            time.sleep(0.05)
        below = living_below(run.pid)
        assert len(below) == 1, "its reward worker"
        run.send_signal(number)
        _, told = run.communicate(timeout=600)
        steps = json.loads((tmp_path / number.name / "run.json").read_text())["steps_run"]
        assert run.returncode == 130
        assert f"{steps} steps are saved: resume with proa resume {number.name}\ninterrupted\n" in told
        assert "Traceback" not in told
        assert not [pid for pid in below if os.path.exists(f"/proc/{pid}")]  # noqa: PTH110
