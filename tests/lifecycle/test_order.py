"""In which order callbacks hear a moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proa import Callback, CallbackManager, LogContext, LoopState, Priority, TrainerCallback, TrainState

TEARDOWN = ["train_end", "run_end", "experiment_end", "error"]


def named(name, priority, heard):
    """A callback of the class `name` that writes its name down at every moment it has a hook for."""

    def hear(self, *payload, **named):
        heard.append(name)

    hooks = ["on_train_start", "on_train_end", "on_step_end", "on_exception", "on_run_start", "on_run_end"]
    return type(name, (Callback,), {**dict.fromkeys(hooks, hear), "priority": priority})()


def test_bands_go_first_then_registration():
    heard = []
    bands = [Priority.LOGGING, Priority.DEFAULT, Priority.METRICS, Priority.DEFAULT, Priority.RECORD, Priority.CONTROL]
    manager = CallbackManager([named(f"{i}:{band.name}", band, heard) for i, band in enumerate(bands)])
    manager.fire("step_end", LoopState())
    assert heard == ["2:METRICS", "4:RECORD", "1:DEFAULT", "3:DEFAULT", "5:CONTROL", "0:LOGGING"]


@given(st.lists(st.sampled_from([*Priority, 7, -50]), max_size=8))
def test_outer_teardown_keeps_the_bands_and_reverses_registration_within_each(priorities):
    heard = []
    manager = CallbackManager([named(str(i), priority, heard) for i, priority in enumerate(priorities)])
    manager.fire("step_end", LoopState())
    forward = list(heard)
    assert forward == [str(i) for i in sorted(range(len(priorities)), key=lambda i: (-priorities[i], i))]
    heard.clear()
    manager.fire("train_end", LoopState(), None)
    assert heard == [str(i) for i in sorted(range(len(priorities)), key=lambda i: (-priorities[i], -i))]


@pytest.mark.parametrize("event", TEARDOWN)
def test_what_was_opened_last_is_closed_first(event, tmp_path):
    heard = []
    manager = CallbackManager([named("first", 0, heard), named("second", 0, heard)])
    if event == "experiment_end":
        manager.on(event)(lambda: heard.append("first"))
        manager.on(event)(lambda: heard.append("second"))
    manager.fire(event, LogContext(tmp_path) if event in ("run_end", "experiment_end") else LoopState())
    assert heard == ["second", "first"]


def test_styles_share_one_order():
    heard = []

    class Trainer(TrainerCallback):
        def on_batch_end(self, metrics, experience):
            heard.append("TrainerCallback")

    class Loop(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            heard.append("Callback")

    manager = CallbackManager()
    manager.on("step_end")(lambda: heard.append("function"))
    manager.add(Loop())
    manager.add(Trainer())
    manager.on("step_end", priority=Priority.METRICS)(lambda: heard.append("early function"))
    manager.fire("step_end", TrainState())
    assert heard == ["early function", "function", "Callback", "TrainerCallback"]


def test_explain_prints_and_returns_the_resolved_order(capsys):
    manager = CallbackManager()

    @manager.on("step_end", every=100, priority=Priority.LOGGING)
    def upload(state): ...

    @manager.on("step_end", priority=5)
    def show(state): ...

    assert manager.explain("step_end") == ["show", "upload"]
    assert capsys.readouterr().out.splitlines() == [
        "step_end(state, step_idx, batch, metrics, experience): 2 listeners",
        "  1. show  [5, RAISE]",
        "  2. upload  [LOGGING, RAISE, every 100]",
    ]


def test_two_callbacks_of_one_class_have_two_names(capsys):
    class Mine(Callback):
        def on_train_start(self, state): ...

    manager = CallbackManager([Mine(), Mine(), Mine()])
    assert manager.explain("train_start") == [
        "Mine.on_train_start",
        "Mine#2.on_train_start",
        "Mine#3.on_train_start",
    ]
