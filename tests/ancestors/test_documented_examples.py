"""Examples from the documentation of the three systems Proa descends from, with only the import changed.

Each is run by hand, and in a real run. (`DetachedTrainer`'s on Ray: `tests/integration/test_documented_actors.py`.)
"""

import textwrap

import pytest
from tests.ancestors.runs import SFT, OutOfLuck, OwnTrainer, numbered
from tests.small import DETACHED

from proa import CallbackManager, Experience, LoopState, TrainState, recipes

TRAINER_CALLBACK = """
from proa import TrainerCallback
from proa import Experience

class LoggingCallback(TrainerCallback):
    def on_batch_end(self, metrics: dict, experience: Experience) -> None:
        print(f"Batch metrics: {metrics}")

    def on_fit_end(self) -> None:
        print("Training complete.")
"""

EARLY_STOP = """
@callbacks.on("step_end")
def early_stop(state):
    if state.metrics.get("loss", float("inf")) < 0.01:
        print("Loss target reached, stopping early.")
        state.stop_training()
"""

MANAGER = """
from proa import CallbackManager

callbacks = CallbackManager()

@callbacks.on("step_end")
def log_loss(state):
    if state.global_step % 100 == 0:
        print(f"Step {state.global_step}: loss={state.metrics.get('loss', 'N/A')}")

@callbacks.on("train_end")
def on_complete(state):
    print(f"Training complete after {state.global_step} steps.")
"""

FIRE = 'callbacks.fire("step_end", state)'

GRADIENTS = """
@callbacks.on("step_end")
def log_gradients(state):
    if state.global_step % 50 == 0:
        grad_norm = state.metrics.get("grad_norm")
        if grad_norm is not None:
            print(f"Step {state.global_step}: grad_norm={grad_norm:.4f}")
"""

CHECKPOINT = """
@callbacks.on("checkpoint_saved")
def notify_checkpoint(state):
    print(f"Checkpoint saved at step {state.global_step}")
"""

ERROR = """
@callbacks.on("error")
def handle_error(state):
    print(f"Error at step {state.global_step}: {state.metrics.get('error')}")
"""


@pytest.fixture
def names():
    return {"callbacks": CallbackManager()}


def run(source, names):
    exec(textwrap.dedent(source), names)


def test_the_logging_callback_of_the_detached_trainer(names, capsys):
    import torch

    run(TRAINER_CALLBACK, names)
    manager = CallbackManager([names["LoggingCallback"]()])
    experience = Experience(torch.zeros(2, 3), torch.zeros(2, 1))
    manager.moments.step_end(LoopState(), 0, None, {"loss": 0.5}, experience)
    manager.moments.train_end(LoopState(), None)
    assert capsys.readouterr().out == "Batch metrics: {'loss': 0.5}\nTraining complete.\n"


def test_early_stop(names, capsys):
    run(EARLY_STOP, names)
    state = TrainState(metrics={"loss": 0.5})
    names["callbacks"].fire("step_end", state)
    assert not state.should_stop
    state.metrics["loss"] = 0.001
    names["callbacks"].fire("step_end", state)
    assert (state.should_stop, state.stopped_by) == (True, "early_stop")
    assert capsys.readouterr().out == "Loss target reached, stopping early.\n"


def test_the_callback_manager_in_a_loop_of_ones_own(names, capsys):
    run(MANAGER, names)
    state = names["state"] = TrainState()
    for done in range(1, 201):
        state.global_step, state.metrics = done, {"loss": 1 / done}
        run(FIRE, names)
    names["callbacks"].fire("train_end", state)
    assert capsys.readouterr().out.splitlines() == [
        "Step 100: loss=0.01",
        "Step 200: loss=0.005",
        "Training complete after 200 steps.",
    ]


def test_gradient_logging(names, capsys):
    run(GRADIENTS, names)
    for done in (49, 50):
        names["callbacks"].fire("step_end", TrainState(global_step=done, metrics={"grad_norm": 1.5}))
    assert capsys.readouterr().out == "Step 50: grad_norm=1.5000\n"


def test_checkpoint_notification(names, capsys):
    run(CHECKPOINT, names)
    names["callbacks"].fire("checkpoint_saved", TrainState(global_step=10))
    assert capsys.readouterr().out == "Checkpoint saved at step 10\n"


def test_error_handling(names, capsys):
    run(ERROR, names)
    names["callbacks"].fire("error", TrainState(global_step=3, metrics={"error": "ValueError: bad"}))
    assert capsys.readouterr().out == "Error at step 3: ValueError: bad\n"


# -- in real runs --------------------------------------------------------------------------------------------------


def printed(capsys, *starts):
    """The lines that begin with one of these words."""
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(starts)]


def test_the_logging_callback_in_a_local_run(names, capsys, tmp_path):
    run(TRAINER_CALLBACK, names)
    settings = {**DETACHED, "total_steps": 2}
    recipes.grpo(**settings, name="run", output_dir=tmp_path, callbacks=[names["LoggingCallback"]()])
    first, second, last = printed(capsys, "Batch metrics: {'loss': ", "Training complete.")
    assert first != second
    assert last == "Training complete."


def test_the_logging_callback_on_a_trainer_of_ones_own(names, capsys):
    run(TRAINER_CALLBACK, names)
    trainer = OwnTrainer([], train_batch_size=2, callbacks=[names["LoggingCallback"]()])
    trainer.buffer_append(numbered(4))
    trainer.fit(2, 2)
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0].rstrip("}") for line in said] == [
        "Batch metrics: {'loss': 1.0", "Batch metrics: {'loss': 2.0", "Training complete.",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def hundred_steps(tmp_path_factory):
    """What the examples for a manager print in a run of a hundred steps with a checkpoint in its middle."""
    said = []
    names = {"callbacks": CallbackManager(), "print": said.append}
    run(MANAGER, names)
    for example in (EARLY_STOP, GRADIENTS, CHECKPOINT, ERROR):
        run(example, names)
    settings = {**SFT, "eval": [], "total_steps": 100, "train_epochs": 1, "checkpoint": {"save_every": 50}}
    recipes.sft(**settings, name="run", output_dir=tmp_path_factory.mktemp("hundred"), callbacks=names["callbacks"])
    return said


def test_the_manager_in_a_run(hundred_steps):
    said = [line for line in hundred_steps if "loss=" in line or "complete" in line]
    assert [line.partition("=")[0] for line in said] == ["Step 100: loss", "Training complete after 100 steps."]
    assert float(said[0].partition("=")[2]) > 0


def test_gradient_logging_in_a_run(hundred_steps):
    said = [line.partition("=") for line in hundred_steps if "grad_norm" in line]
    assert [start for start, *_ in said] == ["Step 50: grad_norm", "Step 100: grad_norm"]
    assert all(float(norm) > 0 for *_, norm in said)


def test_checkpoint_notification_in_a_run(hundred_steps):
    said = [line for line in hundred_steps if line.startswith("Checkpoint")]
    assert said == ["Checkpoint saved at step 50", "Checkpoint saved at step 100"]


def test_early_stop_in_a_run(names, capsys, tmp_path):
    """The loss of GRPO is nearly 0 while the weights are those that sampled."""
    run(EARLY_STOP, names)
    state = recipes.grpo(**DETACHED, name="run", output_dir=tmp_path, callbacks=names["callbacks"])
    assert printed(capsys, "Loss target") == ["Loss target reached, stopping early."]
    assert state.global_step < DETACHED["total_steps"]
    assert state.metrics["loss"] < 0.01


def test_error_handling_in_a_run(names, capsys, tmp_path):
    run(ERROR, names)
    with pytest.raises(RuntimeError):
        recipes.sft(**{**SFT, "eval": []}, name="run", output_dir=tmp_path, callbacks=[names["callbacks"], OutOfLuck()])
    assert printed(capsys, "Error at") == ["Error at step 2: RuntimeError: out of luck"]


def test_the_defaults_of_the_documented_state():
    assert repr(TrainState()).startswith(
        "TrainState(step=0, epoch=0, global_step=0, num_epochs=0, max_steps=-1, metrics={}, should_stop=False"
    )
