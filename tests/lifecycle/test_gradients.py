"""Gradients are shown before the optimizer's step, to those who look, and may not be changed."""

import pytest
import torch

from proa import CallbackManager, LoopState, TrainerCallback
from proa.callbacks import EventTracer
from proa.errors import HookError
from proa.lifecycle import fire_gradients_ready


class Looks(TrainerCallback):
    def __init__(self, look):
        self.look = look

    def on_gradients_ready(self, gradients):
        self.look(gradients)


def fire(*callbacks, collect=lambda: {"a.weight": torch.ones(2), "b.weight": torch.zeros(3)}):
    fire_gradients_ready(CallbackManager(callbacks), LoopState(), collect)


def test_a_hook_gets_a_mapping_by_parameter_name():
    seen = []
    fire(Looks(lambda gradients: seen.append({name: tensor.tolist() for name, tensor in gradients.items()})))
    assert seen == [{"a.weight": [1.0, 1.0], "b.weight": [0.0, 0.0, 0.0]}]


def test_nothing_is_collected_if_nobody_looks(capsys):
    def collect():
        raise AssertionError("nobody looks")

    fire(collect=collect)
    fire(EventTracer(times=False), collect=collect)
    assert capsys.readouterr().out == "gradients_ready\n"


def test_the_mapping_cannot_be_written_to():
    def assign(gradients):
        gradients["a.weight"] = torch.zeros(2)

    with pytest.raises(TypeError, match="does not support item assignment"):
        fire(Looks(assign))


def test_a_gradient_that_is_changed_in_place_ends_the_step():
    with pytest.raises(HookError, match=r"changed the gradient of b.weight in place: .*clone"):
        fire(Looks(lambda gradients: gradients["b.weight"].add_(1)))


def test_a_copy_may_be_changed():
    fire(Looks(lambda gradients: gradients["b.weight"].clone().add_(1)))
