"""The driver of a run on Ray, over trainers that do what each test says: nothing is started."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

import ray

from proa import CallbackManager
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
