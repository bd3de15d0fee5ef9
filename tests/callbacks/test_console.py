"""What the console shows, on a terminal and elsewhere."""

import io

import pytest
from rich.console import Console

from proa import Callback, TrainingBatch
from proa.callbacks import ConsoleProgress, EarlyStopping
from proa.callbacks.console import sparkline
from proa.loop import ScoreFunction, SupervisedLoop


def train(*, terminal, steps=4, fail=False, more=(), **params):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, highlight=False)

    def step(batch):
        if fail:
            raise RuntimeError("lost the GPU")
        return {"loss": 0.5, "learning_rate": 1e-3}

    loop = SupervisedLoop(
        step,
        callbacks=[ConsoleProgress(console=console, **params), *more],
        evaluators=[ScoreFunction("sort", lambda: {"exact": 0.25}, run_every=2)],
    )
    try:
        loop.fit(lambda epoch: [TrainingBatch(0)] * steps, max_steps=steps)
    finally:
        shown = out.getvalue()
    return shown


def test_elsewhere_one_plain_line_per_step():
    lines = train(terminal=False).splitlines()
    assert lines[0].startswith("step 0  loss 0.5  learning_rate 0.001  (1 of 4 steps done")
    assert [line.split("  ")[0] for line in lines if line.startswith("step")] == [
        "step 0",
        "step 1",
        "step 2",
        "step 3",
    ]
    assert "eval sort after step 1: exact 0.25" in lines
    assert lines[-1].startswith("done: 4 steps")
    assert "\x1b" not in "".join(lines)


def test_lines_can_be_thinned_and_the_last_one_stays():
    lines = train(terminal=False, every=3).splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("step")] == ["step 2", "step 3"]


def test_a_stop_says_who_and_why():
    shown = train(terminal=False, steps=9, more=[EarlyStopping("loss", patience=2)])
    assert "stopped after 3 steps" in shown
    assert "loss has not improved in 2 looks" in shown
    assert "(by EarlyStopping)" in shown


def test_a_terminal_gets_a_live_panel():
    shown = train(terminal=True)
    assert "proa" in shown
    assert "loss 0.5" in shown
    assert "done: 4 steps" in shown


def test_a_failure_is_shown_and_the_terminal_given_back(capsys):
    with pytest.raises(RuntimeError, match="lost the GPU"):
        train(terminal=True, fail=True)


def test_a_curve_of_many_points_fits():
    assert len(sparkline([float(i) for i in range(1000)])) <= 60
    assert sparkline([]) == ""
    assert sparkline([1.0, 1.0]) == "▁▁"


def test_rewards_that_failed_are_in_the_line_whatever_else_is_shown():
    shown = ConsoleProgress(metrics=["loss"])._values({"loss": 0.5, "reward_failed_fraction": 0.125})
    assert shown == "loss 0.5  12.5 % of rewards failed"
    assert ConsoleProgress()._values({"loss": 0.5, "reward_failed_fraction": 0.0}).count("failed") == 1  # its own name


class Logs(Callback):
    def on_step_end(self, state, step_idx, batch, metrics):
        state.log("mine", step_idx)
        metrics["added"] = 2 * step_idx


def test_what_hooks_log_is_shown_once():
    lines = train(terminal=False, steps=2, more=[Logs()]).splitlines()
    assert lines[0].startswith("step 0  loss 0.5  learning_rate 0.001  added 0  (")
    assert lines[1] == "step 0  mine 0"
    assert lines[2].startswith("step 1  loss 0.5  learning_rate 0.001  added 2  (")
    assert "mine 1" in train(terminal=True, steps=2, more=[Logs()])
