"""The driver of a run on Ray, over trainers that do what each test says: nothing is started."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

import ray

from proa import CallbackManager
from proa.learning.replicas import ReplicaError
from proa.policy.models import ModelError
from proa.runtime.ray import driver
from proa.runtime.ray.calls import UnreachableError
from proa.runtime.ray.driver import RayRuntime
from proa.runtime.ray.places import RaySettings
from proa.runtime.ray.trainer_host import Outcome
from proa.runtime.supervisor import Limits

LOST = ray.exceptions.ActorUnavailableError("the network is down", None)


class Method:
    """A trainer's method; its replies are values, or what Ray raises, the last one for ever."""

    def __init__(self, *replies):
        self.replies, self.calls = list(replies), []

    def remote(self, *arguments):
        self.calls.append(arguments)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


NOT_YET = object()
"""The reply of a call that has not ended."""


@pytest.fixture
def runtime(monkeypatch):
    """One whose trainer has ended, and that has no makers."""

    def get(reply, timeout=None):
        if isinstance(reply, BaseException):
            raise reply
        return reply

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda replies, timeout: ([r for r in replies if r is not NOT_YET], []))
    made = RayRuntime(
        None, None, makers=0, manager=CallbackManager(), settings=RaySettings(namespace="test"), limits=Limits(),
        patience=60.0,
    )  # fmt: skip
    made._checked_at = float("inf")
    made._supervisor = SimpleNamespace(
        is_unfinished=False, collect_ends=lambda: None, callback_errors={}, views=list, activities=list
    )
    made._trainers = [SimpleNamespace(exchange=Method([]), snapshot=Method(None), interrupt=Method(None))]
    made._training = [SimpleNamespace(ended=lambda: True, value=Outcome({}, {"steps_run": 4}))]
    return made


def test_a_run_that_ended_well_stays_so_though_its_end_cannot_be_looked_at(runtime, monkeypatch):
    def silent(*_, who, **__):
        raise UnreachableError(f"{who} has not replied")

    monkeypatch.setattr(driver, "request", silent)
    runtime._finish(runtime._training[0].value)
    assert runtime.summary == {"steps_run": 4}


def test_an_interrupt_that_is_lost_on_its_way_is_sent_again(runtime):
    runtime._trainers[0].interrupt = interrupt = Method(LOST, LOST, None)
    runtime._training[0] = training = SimpleNamespace(ended=lambda: len(interrupt.calls) == 3, value="the outcome")
    runtime._interruption.ask("SIGINT")
    assert runtime._drive() == training.value
    assert interrupt.calls == [("SIGINT",)] * 3


def test_an_interrupt_that_has_arrived_is_not_sent_again(runtime):
    looks = iter([False] * 5 + [True])
    runtime._training[0] = SimpleNamespace(ended=lambda: next(looks), value="the outcome")
    runtime._interruption.ask("SIGINT")
    runtime._drive()
    assert len(runtime._trainers[0].interrupt.calls) == 1


def test_an_interrupt_after_the_last_step_leaves_a_finished_run_finished(runtime):
    runtime._interruption.ask("SIGINT")
    try:
        runtime._finish(Outcome({}, {"steps_run": 4}))
    except KeyboardInterrupt:
        pytest.fail("it has finished")
    assert runtime.summary == {"steps_run": 4}


def test_an_interrupted_trainer_ends_the_run_as_interrupted(runtime):
    runtime._interruption.ask("SIGINT")
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        runtime._finish(Outcome({}, {}, KeyboardInterrupt("SIGINT")))


def failed(cause):
    """What a call to an actor raises in which this was raised."""
    return ray.exceptions.RayTaskError("prepare", "a traceback", cause)


FOLLOW_UP = ReplicaError("another trainer is gone")


@pytest.mark.parametrize(
    "replies",
    [[NOT_YET, failed(ModelError("no model"))], [failed(FOLLOW_UP), failed(ModelError("no model"))]],
    ids=["the others wait for it", "the others noticed it"],
)
def test_of_several_trainers_the_one_that_failed_is_reported(runtime, replies):
    runtime._trainers = [SimpleNamespace(prepare=Method(reply)) for reply in replies]
    with pytest.raises(ModelError, match="no model"):
        runtime._call_trainers("prepare", None)


def test_where_no_trainer_knows_better_it_is_reported_that_one_is_gone(runtime, monkeypatch):
    monkeypatch.setattr(driver, "END_SECONDS", 0.01)
    runtime._trainers = [SimpleNamespace(prepare=Method(reply)) for reply in (failed(FOLLOW_UP), NOT_YET)]
    with pytest.raises(ReplicaError, match="another trainer is gone"):
        runtime._call_trainers("prepare", None)


def test_the_replies_of_all_trainers_come_in_the_order_of_their_ranks(runtime):
    runtime._trainers = [SimpleNamespace(ready=Method(LOST, "a")), SimpleNamespace(ready=Method("b"))]
    assert runtime._call_trainers("ready", 60.0) == ["a", "b"]
