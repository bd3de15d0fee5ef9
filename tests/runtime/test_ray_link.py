"""What travels to the driver with a moment: nothing large that nobody reads, and nothing twice."""

import pickle

import pytest
import torch

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

from proa import Callback, CallbackManager, Experience, LoopState, TrainerCallback, TrainingBatch
from proa.runtime.ray.link import DriverLink, Interests, Question
from proa.runtime.ray.listening import Listening


def payload(**more):
    experience = Experience(torch.zeros(2, 5), torch.zeros(2, 3), reward=torch.ones(2))
    batch = TrainingBatch(experience, "grpo")
    return {"state": LoopState(global_step=1), "step_idx": 0, "batch": batch, "metrics": {"loss": 1.0},
            "experience": experience, **more}  # fmt: skip


def test_batch_and_experience_travel_only_if_they_are_read_and_once():
    assert [Interests(frozenset(), frozenset()).lighten("step_end", payload())[name] for name in COSTLY] == [None, None]
    both = Interests(frozenset(), frozenset({("step_end", "batch"), ("step_end", "experience")}))
    sent = pickle.loads(pickle.dumps(both.lighten("step_end", payload())))
    assert sent["batch"].data is sent["experience"]
    assert (sent["batch"].loss_fn, len(sent["experience"])) == ("grpo", 2)
    alone = Interests(frozenset(), frozenset({("step_end", "batch")})).lighten("step_end", payload())
    assert (alone["experience"], len(alone["batch"].data)) == (None, 2)


COSTLY = ("batch", "experience")


def test_gradients_never_travel():
    everything = Interests(frozenset({"gradients_ready"}), frozenset({("gradients_ready", "gradients")}))
    assert everything.lighten("gradients_ready", {"state": LoopState(), "gradients": {"a": 1}})["gradients"] is None


class Driver(Callback):
    """Logs and adds, in the driver."""

    def __init__(self):
        self.rows = []

    def on_step_end(self, state, step_idx, batch, metrics):
        self.rows.append((step_idx, dict(metrics)))
        metrics["added"] = 2
        state.log("logged", 3)

    def on_metrics(self, state, step_idx, metrics):
        self.rows.append((step_idx, dict(metrics)))


class InTrainer(TrainerCallback):
    """Hears the same moment after the driver."""

    def __init__(self):
        self.seen = None

    def on_batch_end(self, metrics, experience):
        self.seen = dict(metrics)


def test_what_the_driver_s_hooks_log_and_add_is_written_there_and_known_to_the_trainer():
    driver = Driver()
    listening = Listening(CallbackManager([driver]), LoopState())
    with listening.attached():
        asked: list[Question] = []

        def ask(question, seconds):
            asked.append(question)
            return listening.answer(question)

        link, here = DriverLink("trainer_0", listening.interests(), ask, 1.0), InTrainer()
        manager, state = CallbackManager([link, here]), LoopState(global_step=1)
        metrics = {"loss": 1.0}
        manager.fire("step_end", state, 0, None, metrics, None)
    assert [question.event for question in asked] == ["step_end"]
    assert driver.rows == [(0, {"loss": 1.0}), (0, {"added": 2, "logged": 3})]
    assert here.seen == {"loss": 1.0, "added": 2}
    assert state.metrics == {"loss": 1.0, "added": 2, "logged": 3}
    assert state.logged == {"logged": 3, "added": 2}
    assert not state.has_logged, "the driver has written it"


def test_what_the_driver_s_functions_log_for_a_maker_goes_back_to_the_maker():
    manager = CallbackManager()
    manager.on("maker.send_start")(lambda state: state.log("sending", 1))
    listening = Listening(manager, LoopState())
    link = DriverLink("maker_0", listening.interests(), lambda question, seconds: listening.answer(question), 1.0)
    maker = LoopState()
    link.on_moment("maker.send_start", {"state": maker})
    assert maker.take_logged() == {"sending": 1}
    link.on_moment("maker.send_start", {"state": maker})
    assert maker.take_logged() == {"sending": 1}, "and again, each time it is logged"
