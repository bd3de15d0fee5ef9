"""An engine that knows its weights: versions, one caller at a time, and settings put back."""

import logging
import threading

import pytest
import torch
from tests.rollouts.fixed_engine import FixedEngine

from proa.data.sampling import Sampling
from proa.engines import group_requests
from proa.rollouts import Progress, VersionedEngine

REQUESTS = list(group_requests("a", (1, 2), (4, 6), Sampling()))


def generate(engine):
    return engine.generate(REQUESTS, Progress("a test"))


def test_it_says_which_version_made_what():
    engine = VersionedEngine(FixedEngine())
    assert (engine.version, generate(engine).version) == (-1, -1)
    engine.load({"weight": torch.zeros(1)}, 5)
    made = generate(engine)
    assert (engine.version, made.version) == (5, 5)
    assert [one.tokens.tolist() for one in made.completions] == [[4], [6]]


def test_weights_that_are_refused_leave_the_version_as_it_was():
    class Refusing(FixedEngine):
        def load(self, weights, version):
            if "weight" not in weights:
                raise ValueError("weight is missing")

    engine = VersionedEngine(Refusing())
    engine.load({"weight": torch.zeros(1)}, 1)
    with pytest.raises(ValueError, match="weight is missing"):
        engine.load({}, 2)
    assert engine.version == 1


def test_weights_are_switched_between_two_calls_and_not_inside_one():
    begun, may_end, order = threading.Event(), threading.Event(), []

    class Slow(FixedEngine):
        def step(self):
            begun.set()
            assert may_end.wait(120)
            order.append("generated")
            return super().step()

        def load(self, weights, version):
            order.append("loaded")

    engine, made = VersionedEngine(Slow()), []
    generating = threading.Thread(target=lambda: made.append(generate(engine)))
    loading = threading.Thread(target=lambda: engine.load({}, 1))
    generating.start()
    assert begun.wait(120)
    loading.start()
    loading.join(0.05)
    assert loading.is_alive()
    may_end.set()
    generating.join(120)
    loading.join(120)
    assert (order, made[0].version, engine.version) == (["generated", "loaded"], -1, 1)


def test_settings_of_torch_that_a_neighbour_changed_are_put_back_before_the_next_call(caplog):
    seen = []

    class Looking(FixedEngine):
        def step(self):
            seen.append(torch.get_num_threads())
            return super().step()

    before = torch.get_num_threads()
    guarded = VersionedEngine(Looking(), guarded_from="a callback of somebody")
    try:
        with caplog.at_level(logging.WARNING, "proa.numerics"):
            generate(guarded)
            torch.set_num_threads(before + 1)
            generate(guarded)
    finally:
        torch.set_num_threads(before)
    assert seen == [before, before]
    assert "a callback of somebody called torch.set_num_threads" in caplog.text
