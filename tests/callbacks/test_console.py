"""What the console shows, on a terminal and elsewhere."""

import io
import sys
import types

import pytest
from rich.console import Console

from proa import Callback, Priority, TrainingBatch
from proa.callbacks import ConsoleProgress, EarlyStopping
from proa.callbacks.console import sparkline
from proa.data.state import LoopState
from proa.loop import ScoreFunction, SupervisedLoop

DETACHED_STEP = {
    "loss": -0.0122, "grad_norm": 1.09, "learning_rate": 1e-4, "reward": 0.4456, "reward_std": 0.2638,
    "completion_tokens": 7.016, "samples": 512.0, "ratio": 0.9985, "clipped_low": 0.0125, "entropy": 1.007,
    "staleness": 1.0, "trainer.wait_seconds": 0.1, "trainer.compute_seconds": 0.3, "maker.generate_seconds": 0.6,
    "maker.wait_seconds": 0.2, "maker.tokens_per_second": 7006.3, "makers": 2.0, "reward_failed_fraction": 0.0,
}  # fmt: skip
"""What a step of a detached run reports."""


def train(*, terminal, steps=4, fail=False, more=(), report=None, **params):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, highlight=False)

    def step(batch):
        if fail:
            raise RuntimeError("lost the GPU")
        return report or {"loss": 0.5, "learning_rate": 1e-3}

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
    assert lines[0].startswith("step 1 of 4  loss 0.5  learning_rate 0.001  0.")
    steps = [line.split("  ")[0] for line in lines if line.startswith("step")]
    assert steps == ["step 1 of 4", "step 2 of 4", "step 3 of 4", "step 4 of 4"]
    assert "eval sort after step 2: exact 0.25" in lines
    assert lines[-1].startswith("done: 4 steps")
    assert "\x1b" not in "".join(lines)


def test_lines_can_be_thinned_and_the_last_one_stays():
    lines = train(terminal=False, every=3).splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("step")] == ["step 3 of 4", "step 4 of 4"]


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
    assert shown == ["loss 0.5", "12.5 % of rewards failed"]
    assert ConsoleProgress()._values({"loss": 0.5, "reward_failed_fraction": 0.0})[2:] == []


class Logs(Callback):
    def on_step_end(self, state, step_idx, batch, metrics):
        state.log("mine", step_idx)
        metrics["added"] = 2 * step_idx


def test_what_hooks_log_is_shown_once():
    lines = train(terminal=False, steps=2, more=[Logs()]).splitlines()
    assert lines[0].startswith("step 1 of 2  loss 0.5  learning_rate 0.001  added 0  0.")
    assert lines[1] == "step 1 of 2  mine 0"
    assert lines[2].startswith("step 2 of 2  loss 0.5  learning_rate 0.001  added 2  0.")
    assert "mine 1" in train(terminal=True, steps=2, more=[Logs()])


def test_the_reward_leads_and_is_the_curve():
    shown = train(terminal=True, report=DETACHED_STEP)
    assert "reward 0.4456  loss -0.0122" in shown  # nothing went wrong that would come between them
    assert "reward ▁▁" in shown
    assert "loss ▁" not in shown


def test_who_waits_for_whom_is_shown_with_speed_and_staleness():
    shown = train(terminal=True, report=DETACHED_STEP)
    assert "7006 tokens/s  staleness 1  waiting: trainer 25 %, makers 25 %" in shown
    assert "tokens/s" in train(terminal=False, report={**DETACHED_STEP, "entropy": 1.0}, metrics=["reward"])


def test_every_line_of_a_file_has_the_shares_of_what_went_wrong():
    """They come before the loss where a line of 80 columns has not room for both."""
    shares = {"reward_zero_std_fraction": 0.0703, "truncated_fraction": 0.945}
    lines = train(terminal=False, report={**DETACHED_STEP, "loss": -0.0005442, **shares}).splitlines()
    assert all("7.03 % equal groups  94.5 % truncated" in line for line in lines if line.startswith("step"))


def test_no_line_is_wider_than_the_console():
    long = {f"a_metric_with_a_long_name_{number}": 0.123456 for number in range(20)} | {"x" * 200: 1.0}
    for report in (DETACHED_STEP, DETACHED_STEP | long, long):
        lines = train(terminal=False, report=report).splitlines()
        assert max(map(len, lines)) <= 80
        rows = ConsoleProgress(console=Console(width=80))
        rows.on_train_start(LoopState(num_steps=4))
        assert max(map(len, rows._rows(LoopState(num_steps=4), report, 76))) <= 76


def test_a_baseline_comes_before_training():
    out = io.StringIO()
    shows = ConsoleProgress(console=Console(file=out, width=80))
    shows.on_train_start(LoopState(num_steps=4))
    shows.on_eval(LoopState(num_steps=4), -1, "sort", {"exact": 0.25})
    assert out.getvalue() == "eval sort before training: exact 0.25\n"


def test_a_print_while_the_panel_is_shown_comes_above_it():
    class Prints(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            print(f"from a reward {step_idx}")

    assert "from a reward 3" in train(terminal=True, more=[Prints()])


def test_after_a_failure_no_panel_is_left():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)

    def step(batch):
        raise RuntimeError("lost the GPU")

    shows = ConsoleProgress(console=console)
    with pytest.raises(RuntimeError):
        SupervisedLoop(step, callbacks=[shows]).fit(lambda epoch: [TrainingBatch(0)], max_steps=1)
    assert shows._live is None
    assert out.getvalue().rstrip().endswith("failed after 0 steps, 0.0 s: RuntimeError: lost the GPU")


@pytest.fixture
def notebook(monkeypatch):
    """What a notebook is asked to display: an output, or another content for it."""
    shown = []

    class Handle:
        def update(self, content, raw):
            shown.append(("update", content["text/plain"]))

    def display(content, raw, display_id):
        shown.append(("display", content["text/plain"]))
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    return shown


def test_a_long_error_does_not_wrap_for_it_is_shown_whole_where_it_is_caught():
    out = io.StringIO()

    def step(batch):
        raise RuntimeError("lost the GPU " * 20)

    shows = ConsoleProgress(console=Console(file=out, width=60))
    with pytest.raises(RuntimeError):
        SupervisedLoop(step, callbacks=[shows]).fit(lambda epoch: [TrainingBatch(0)], max_steps=1)
    last = out.getvalue().splitlines()[-1]
    assert last.startswith("failed after 0 steps, 0.0 s: RuntimeError: lost the GPU")
    assert (len(last), last[-1]) == (60, "…")


def test_an_interrupted_run_says_so_without_names_of_classes():
    out = io.StringIO()

    def step(batch):
        raise KeyboardInterrupt

    shows = ConsoleProgress(console=Console(file=out, width=80))
    with pytest.raises(KeyboardInterrupt):
        SupervisedLoop(step, callbacks=[shows]).fit(lambda epoch: [TrainingBatch(0)], max_steps=1)
    assert out.getvalue().splitlines()[-1] == "interrupted after 0 steps, 0.0 s"


def test_a_notebook_has_one_output_that_is_replaced_and_lines_are_printed_which_it_joins(notebook, capsys):
    console = ConsoleProgress(console=Console(force_jupyter=True))
    loop = SupervisedLoop(
        lambda batch: {"loss": 0.5},
        callbacks=[console, _Record(console)],
        evaluators=[ScoreFunction("sort", lambda: {"exact": 0.25}, run_every=2)],
    )
    loop.fit(lambda epoch: [TrainingBatch(0)] * 4, max_steps=4)
    assert [kind for kind, _ in notebook].count("display") == 1
    first, *_, last = notebook[-1][1].splitlines()
    assert first.startswith("4 of 4 steps done")
    assert "left" not in first
    assert last == "eval sort: exact 0.25"  # of the last step, after which nothing but the eval came
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["a sample of step 1: reward 1", "  prompt      2+2=", "  completion  4"]
    assert lines[3:5] == ["eval sort after step 2: exact 0.25", "eval sort after step 4: exact 0.25"]
    assert lines[5].startswith("done: 4 steps")


def test_of_quick_steps_a_notebook_is_sent_some_and_the_last_and_every_eval(notebook, monkeypatch):
    monkeypatch.setattr("proa.callbacks.console.REFRESHES", 1e-9)  # nothing follows late enough
    console = ConsoleProgress(console=Console(force_jupyter=True))
    loop = SupervisedLoop(
        lambda batch: {"loss": 0.5},
        callbacks=[console],
        evaluators=[ScoreFunction("sort", lambda: {"exact": 0.25}, 30)],
    )
    loop.fit(lambda epoch: [TrainingBatch(0)] * 50, max_steps=50)
    assert [text.splitlines()[0].split(" done")[0] for _, text in notebook] == [
        "0 of 50 steps", "30 of 50 steps", "50 of 50 steps", "50 of 50 steps",
    ]  # fmt: skip


def test_a_notebook_does_not_go_on_promising_time_after_a_failure(notebook):
    steps = iter([{"loss": 0.5}])
    with pytest.raises(StopIteration):
        SupervisedLoop(
            lambda batch: next(steps), callbacks=[ConsoleProgress(console=Console(force_jupyter=True))]
        ).fit(lambda epoch: [TrainingBatch(0)] * 4, max_steps=4)  # fmt: skip
    assert notebook[-1][1].splitlines()[0].rpartition("   ")[0] == "1 of 4 steps done"
    assert "left" not in notebook[-1][1]


@pytest.mark.parametrize(("seconds", "took", "left"), [(7200.0, "2 h", "3 h"), (138.0, "2 min 18 s", "3 min 27 s")])
def test_long_times_are_shown_in_minutes_and_hours(notebook, monkeypatch, capsys, seconds, took, left):
    clock = iter([0.0, 0.0, 0.0, *[seconds] * 20])  # it starts, and so much later there are four steps
    monkeypatch.setattr("proa.callbacks.console.perf_counter", lambda: next(clock))
    console = ConsoleProgress(console=Console(force_jupyter=True))
    state = LoopState(num_steps=10, global_step=0)
    console.on_train_start(state)
    state.global_step = 4
    console.on_step_end(state, 3, None, {"loss": 1.0})
    assert notebook[-1][1].splitlines()[0] == f"4 of 10 steps done   {took}, about {left} left"
    console.on_train_end(state, None)
    assert capsys.readouterr().out == f"done: 4 steps, {took}\n"


def test_a_step_without_a_reward_says_first_what_is_wrong():
    out = io.StringIO()
    console = ConsoleProgress(console=Console(file=out, width=80))
    state = LoopState(num_steps=2, global_step=1)
    console.on_train_start(state)
    console.on_step_end(state, 0, None, {"skipped": 1.0, "makers": 2.0, "reward_failed_fraction": 1.0})
    assert out.getvalue().startswith("step 1 of 2  100 % of rewards failed  skipped 1  makers 2  0.")


def test_a_plain_line_has_reward_loss_speed_and_staleness():
    line = train(terminal=False, report=DETACHED_STEP).splitlines()[0]
    assert line.startswith("step 1 of 4  reward 0.4456  loss -0.0122  7006 tokens/s  staleness 1  0.")


SAMPLE = {"step": 0, "prompt": "2+2=", "tokens": ["4"], "reward": 1.0}


class _Record(Callback):
    """Hands a sample on, as a run's record does."""

    priority = Priority.RECORD
    uses_asyncio = False

    def __init__(self, console):
        self.console = console

    def on_step_end(self, state, step_idx, batch, metrics):
        self.console.take_sample({**SAMPLE, "step": step_idx})


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_one_sample_is_shown_after_the_first_step(terminal, wanted):
    out = io.StringIO()
    console = ConsoleProgress(console=Console(file=out, force_terminal=terminal, width=80), sample=wanted)
    loop = SupervisedLoop(lambda batch: {"loss": 0.5}, callbacks=[console, _Record(console)])
    loop.fit(lambda epoch: [TrainingBatch(0)] * 4, max_steps=4)
    assert out.getvalue().count("a sample of step") == int(wanted)
    if wanted and not terminal:
        lines = out.getvalue().splitlines()
        assert lines[0].startswith("step 1 of 4")
        assert lines[1:4] == ["a sample of step 1: reward 1", "  prompt      2+2=", "  completion  4"]
